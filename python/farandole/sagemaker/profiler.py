# SPDX-License-Identifier: Apache-2.0
"""SageMaker Profiler's interface (smppy, later smprof) over farandole.profiler."""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar

import torch
from torch.profiler import ProfilerAction

from farandole import arguments, profiler
from farandole.errors import InvalidArgument, sentences
from farandole.logs import LOGGER
from farandole.sagemaker import places
from farandole.sagemaker.absent import not_offered

_WITHOUT_EFFECT = {
    "BucketCount": "each thread has one queue, which is emptied every 100 ms",
    "BucketSizeMB": "each thread has one queue, which is emptied every 100 ms",
    "Compression": "export_chrome_trace() compresses if the name ends in .gz",
}
_NOT_OFFERED = {
    "EnablePerf": ("Farandole does not sample the stacks of threads", "use perf or py-spy"),
    "EnableForkFollow": (
        "forked children are not recorded",
        "call farandole.profiler.start() in a child that is to be recorded",
    ),
}
_NAMES = ("EnableCuda", "RecordFile", *_WITHOUT_EFFECT, *_NOT_OFFERED)
_FOLDER = (
    f"RecordFile of the configuration, LocalPath in the file of {places.PROFILER_CONFIG}, or "
    "natively farandole.profiler.start(folder)"
)


class Config:
    """Options of SMProfiler, as text: ``config.profiler = {"EnableCuda": "1"}``."""

    def __init__(self, profiler: Mapping[str, str] | None = None) -> None:
        self.profiler: dict[str, str] = dict(profiler or {})


class SMProfiler:
    """The profiler of this process: farandole.profiler, which records between start and stop.

    The folder is that of ``RecordFile``, or LocalPath of the profiler's configuration file, or
    /opt/ml/output/profiler. With ``EnableCuda`` kernels are recorded too, from start to stop, in
    memory until then. Threads: as farandole.profiler.start().
    """

    _instance: ClassVar[SMProfiler | None] = None

    def __init__(self) -> None:
        self._records_kernels = False
        self._folder: Path | None = None

    @classmethod
    def instance(cls) -> SMProfiler:
        """The one that there is."""
        if cls._instance is None:
            cls._instance = cls()
        return cls._instance

    def configure(self, config: Config) -> None:
        """Take options for the next start.

        Raises:
            InvalidArgument: it is no Config, or has an option that SageMaker Profiler does not
                have.
            NotSupported: one that Farandole does not offer.
        """
        given = getattr(config, "profiler", None)
        if not isinstance(given, Mapping):
            raise arguments.wrong(
                "configure", "config", config, "a Config whose profiler is a dictionary"
            )
        options = {name: value for name, value in given.items() if _is_on(value)}
        for name in options:
            if name not in _NAMES:
                raise _unknown(name)
            if name in _NOT_OFFERED:
                raise not_offered(f"the option {name} of SMProfiler", *_NOT_OFFERED[name])
            if name in _WITHOUT_EFFECT:
                LOGGER.info("the option %s has no effect: %s", name, _WITHOUT_EFFECT[name])
        self._records_kernels = "EnableCuda" in options
        self._folder = _folder_of(options["RecordFile"]) if "RecordFile" in options else None

    def start_profiling(self) -> None:
        """Record from now on; nothing if this process records already.

        Raises:
            NotSupported: the folder cannot be written.
        """
        folder = places.writable(self._folder or places.profiler_folder(), _FOLDER)
        kernels = self._records_kernels and torch.cuda.is_available()
        if self._records_kernels and not kernels:
            LOGGER.info("EnableCuda: this process has no GPU whose kernels could be recorded")
        profiler.start(
            folder,
            schedule=_always if kernels else None,
            operators=kernels,
            system_interval_ms=_interval_ms(),
        )

    def stop_profiling(self) -> None:
        """Write what is there."""
        profiler.stop()


def _always(_step: int) -> ProfilerAction:
    return ProfilerAction.RECORD


def _interval_ms() -> int | None:
    if importlib.util.find_spec("psutil") is not None:
        return 500
    LOGGER.info("the hardware is not recorded, which needs psutil: pip install psutil")
    return None


def _is_on(value: object) -> bool:
    return str(value).lower() not in ("", "0", "false", "none")


def _folder_of(record_file: str) -> Path | None:
    """That of a pattern of file names; the names themselves are ours."""
    LOGGER.info("RecordFile: its folder counts; files have the names of docs/profiler.md")
    parent = Path(record_file).parent
    return None if parent == Path() else parent


def _unknown(name: str) -> InvalidArgument:
    return InvalidArgument(
        sentences(
            "sagemaker-profiler-option",
            f"SMProfiler got the option {name!r}.",
            f"SageMaker Profiler has {', '.join(_NAMES)}.",
            "pass one of these, or leave it out.",
        )
    )
