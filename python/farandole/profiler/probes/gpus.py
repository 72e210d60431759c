# SPDX-License-Identifier: Apache-2.0
"""GPUs by NVML, NVIDIA's own interface to its driver (package nvidia-ml-py)."""

from __future__ import annotations

import importlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from farandole.logs import LOGGER
from farandole.profiler.probes import Reading

THROTTLED = 0x04 | 0x08 | 0x20 | 0x40 | 0x80
"""Bits of GPUThrottleReasons that slow a GPU down against its will: power cap, hardware slowdown,
thermal slowdown by software or hardware, power brake (nvml.h, nvmlClocksEventReason...)."""


class Gpus:
    """Finds none where there is no driver. The log says so where the package alone is missing."""

    def __init__(self) -> None:
        self._nvml: Any = None
        self._handles: list[Any] = []
        try:
            self._nvml = importlib.import_module("pynvml")
        except ImportError:
            _report_unseen_gpus()
            return
        try:
            self._nvml.nvmlInit()
            count = self._nvml.nvmlDeviceGetCount()
            self._handles = [self._nvml.nvmlDeviceGetHandleByIndex(i) for i in range(count)]
        except self._nvml.NVMLError as error:
            LOGGER.debug("system monitor: no GPUs: %s", error)

    def read(self, elapsed_s: float) -> Iterator[Reading]:  # noqa: ARG002
        """Each value that the GPU has; some models lack power or reasons for throttling."""
        for index, handle in enumerate(self._handles):
            for dimension, measure in _MEASURES.items():
                try:
                    yield Reading("gpu", f"gpu{index}", dimension, measure(self._nvml, handle))
                except self._nvml.NVMLError:
                    continue


def _utilization(nvml: Any, handle: Any) -> float:
    return float(nvml.nvmlDeviceGetUtilizationRates(handle).gpu)


def _memory(nvml: Any, handle: Any) -> float:
    memory = nvml.nvmlDeviceGetMemoryInfo(handle)
    return 100 * float(memory.used) / float(memory.total)


def _power_w(nvml: Any, handle: Any) -> float:
    return float(nvml.nvmlDeviceGetPowerUsage(handle)) / 1000


def _throttle_reasons(nvml: Any, handle: Any) -> float:
    return float(nvml.nvmlDeviceGetCurrentClocksThrottleReasons(handle))


_MEASURES = {
    "GPUUtilization": _utilization,
    "GPUMemoryUtilization": _memory,
    "GPUPowerWatts": _power_w,
    "GPUThrottleReasons": _throttle_reasons,
}


def _report_unseen_gpus() -> None:
    """Where there is a driver; torch is not asked, as that would harm children that are forked."""
    if Path("/proc/driver/nvidia/version").exists():
        LOGGER.warning(
            "system monitor: GPUs are not recorded, as the package nvidia-ml-py is missing: "
            "pip install nvidia-ml-py"
        )
