# SPDX-License-Identifier: Apache-2.0
"""What a result says about where it was measured."""

from __future__ import annotations

import os
import platform
import re
from datetime import datetime, timezone
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path

_BUSY_SHARE = 0.75
"""Of the cores."""


def cpu_model() -> str:
    """As the kernel names it."""
    found = re.search(r"model name\s*:\s*(.+)", Path("/proc/cpuinfo").read_text())
    return found[1] if found else platform.machine()


def package_version(name: str) -> str | None:
    """Of an installed Python package."""
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def busy_text() -> str:
    """A warning where other programs use the cores, whose times would be measured; or empty."""
    load, cores = os.getloadavg()[0], len(os.sched_getaffinity(0))
    if load < _BUSY_SHARE * cores:
        return ""
    return (
        f"# this machine is busy: a load of {load:.1f} in the last minute on {cores} cores; times "
        "are not those of an idle one, above all where one process has several threads"
    )


def describe(device: str) -> dict[str, object]:
    """Fields that every row of one run shares; ``device`` is "cpu" or "cuda"."""
    import torch

    import farandole

    accelerator = torch.cuda.get_device_name() if device == "cuda" else None
    return {
        "cpu": cpu_model(),
        "cores": os.cpu_count(),
        "accelerator": accelerator,
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": torch.__version__,
        "farandole": farandole.__version__,
        "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }
