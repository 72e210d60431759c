# SPDX-License-Identifier: Apache-2.0
"""Files of system metrics: JSON lines in the folders and by the names that SageMaker uses."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import Iterable
from pathlib import Path

from farandole.logs import LOGGER
from farandole.profiler.probes import Reading

ROTATE_BYTES = 10 * 1000**2
ROTATE_S = 60


class MetricsFile:
    """Writes each sample by one system call, so that a killed process leaves whole lines.

    A file has a minute, or 10 MB: ``system/incremental/<YYYYMMDDHH>/<epoch_s>.<node>.json`` below
    the folder, in UTC. It is named after its first second, or a later one if that is taken: no file
    is ever written to by two processes. Where the disk is full, samples are dropped, and the log
    says so once. Threads: one at a time.
    """

    def __init__(self, folder: Path, node: str) -> None:
        self._folder = folder / "system" / "incremental"
        self._node = node
        self._file: int | None = None
        self._opened_s = 0.0
        self._bytes = 0
        self._heads: dict[tuple[str, str, str], str] = {}
        self.dropped = 0
        """Samples that could not be written."""

    def write(self, readings: Iterable[Reading], timestamp_s: float) -> None:
        """Add a sample. Never raises OSError."""
        tail = f', "NodeId": "{self._node}", "Timestamp": {timestamp_s:.6f}}}\n'
        text = "".join(f"{self._head(each)}{each.value:.6g}{tail}" for each in readings).encode()
        try:
            self._open_for(timestamp_s)
            self._append(text)
        except OSError as error:
            self.dropped += 1
            if self.dropped == 1:
                LOGGER.warning("system monitor: samples in %s are dropped: %s", self._folder, error)

    def close(self) -> None:
        """End the file. More than once is harmless."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def _head(self, reading: Reading) -> str:
        key = reading[:3]
        if key not in self._heads:
            names = dict(zip(("Type", "Name", "Dimension"), key, strict=True))
            self._heads[key] = json.dumps(names)[:-1] + ', "Value": '
        return self._heads[key]

    def _open_for(self, timestamp_s: float) -> None:
        """Go on to the next file where it is time, and where the clock was set back."""
        is_its_minute = 0 <= timestamp_s - self._opened_s < ROTATE_S
        if self._file is not None and is_its_minute and self._bytes < ROTATE_BYTES:
            return
        self.close()
        folder = self._folder / time.strftime("%Y%m%d%H", time.gmtime(timestamp_s))
        folder.mkdir(parents=True, exist_ok=True)
        second = int(timestamp_s)
        while self._file is None:
            with contextlib.suppress(FileExistsError):
                flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_APPEND | os.O_CLOEXEC
                self._file = os.open(folder / f"{second}.{self._node}.json", flags, 0o644)
            second += 1
        self._opened_s, self._bytes = timestamp_s, 0

    def _append(self, text: bytes) -> None:
        """Whole or not at all: what a full disk has cut is taken back."""
        assert self._file is not None
        written = 0
        try:
            while written < len(text):
                written += os.write(self._file, text[written:])
        except OSError:
            with contextlib.suppress(OSError):
                os.ftruncate(self._file, self._bytes)
            raise
        self._bytes += written
