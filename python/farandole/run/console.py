# SPDX-License-Identifier: Apache-2.0
"""Prints the output of all ranks, line by line, and remembers the last lines of each."""

from __future__ import annotations

import contextlib
import errno
import os
import select
import shutil
import time
from collections import deque
from datetime import datetime
from pathlib import Path
from typing import BinaryIO

from farandole.run.lines import LineCutter

OUT, ERR = 1, 2
"""The standard streams, as descriptors of a rank and of this process."""
_KEPT_LINES, _KEPT_BYTES = 200, 2000  # of each stream, and of each line
_UPDATE_S = 0.1  # between updates of a progress bar on a terminal
_UPDATE_IN_FILES_S = 10.0
_CLEAR_LINE = b"\r\x1b[K"


class Console:
    """The standard outputs of `farandole run`. Not thread-safe.

    Lines are written whole, so those of different ranks never mix. What ranks write to standard
    output goes to standard output, and the same for standard error.
    """

    def __init__(
        self,
        *,
        prefix: bool,
        folder: Path | None,
        quiet: bool,
        timestamps: bool = False,
        split_digits: int | None = None,
    ) -> None:
        """Take the options of the command line.

        Args:
            prefix: Whether lines begin with their rank.
            folder: For files of what each rank prints.
            quiet: Whether lines that only inform are left out.
            timestamps: Whether lines begin with the time of day.
            split_digits: Digits of ranks in the names of folders, where each rank has a file for
                each stream; None: it has one file.
        """
        self._prefix = prefix
        self._folder = folder
        self._quiet = quiet
        self._timestamps = timestamps
        self._split_digits = split_digits
        self._cutters: dict[tuple[str, int], LineCutter] = {}
        self._last: dict[tuple[str, int], deque[str]] = {}
        self._files: dict[Path, BinaryIO] = {}
        self._broken: set[Path] = set()  # files that could not be written
        self._terminal = {stream: os.isatty(stream) for stream in (OUT, ERR)}
        self._bar_shown = False  # the cursor is behind a progress bar
        self._next_update_s: dict[tuple[str, int], float] = {}
        self.closed = False
        """Whether an output cannot be written any more, as with `| head`."""

    def feed(self, source: str, stream: int, data: bytes) -> None:
        """Takes what ``source``, a rank or a launcher, wrote to ``stream``."""
        cutter = self._cutters.setdefault((source, stream), LineCutter())
        self._print(source, stream, cutter.feed(data))
        if cutter.shown is not None:
            self._update_bar(source, stream, cutter.shown)
        if self._folder is not None and source.isdigit():
            self._keep(self._file_of(self._folder, source, stream), data)

    def end(self, source: str, stream: int) -> None:
        """Prints what ``source`` wrote to ``stream`` after its last line end."""
        cutter = self._cutters.get((source, stream))
        if cutter is not None:
            self._print(source, stream, cutter.end())

    def end_all(self) -> None:
        """Ends all streams and closes the files."""
        for source, stream in self._cutters:
            self.end(source, stream)
        for file in self._files.values():
            file.close()

    def inform(self, text: str) -> None:
        """Prints a line of `farandole run` itself, unless it is to be quiet."""
        if not self._quiet:
            self.say(f"farandole run: {text}")

    def say(self, text: str) -> None:
        """Prints text on standard error."""
        self._write(ERR, text.encode(errors="surrogateescape") + b"\n")

    def last_lines(self, source: str, stream: int) -> list[str]:
        """What ``source`` wrote to ``stream`` last."""
        return list(self._last.get((source, stream), ()))

    def forget(self, source: str) -> None:
        """Forgets its last lines: it starts again."""
        for stream in (OUT, ERR):
            self._last.pop((source, stream), None)

    def _print(self, source: str, stream: int, lines: list[bytes]) -> None:
        if not lines:
            return
        last = self._last.setdefault((source, stream), deque(maxlen=_KEPT_LINES))
        kept = (line[:_KEPT_BYTES] for line in lines[-_KEPT_LINES:])
        last.extend(line.decode(errors="replace") for line in kept)
        before = self._prefix_of(source)
        self._write(stream, b"".join(before + line + b"\n" for line in lines))

    def _prefix_of(self, source: str) -> bytes:
        time_of_day = f"{datetime.now():%Y-%m-%d %H:%M:%S.%f} " if self._timestamps else ""
        name = f"[{source}] " if self._prefix or not source.isdigit() else ""
        return (time_of_day + name).encode()

    def _file_of(self, folder: Path, rank: str, stream: int) -> Path:
        if self._split_digits is None:
            return folder / f"rank-{rank}.log"
        name = "stdout" if stream == OUT else "stderr"
        return folder / f"rank.{rank.zfill(self._split_digits)}" / name

    def _update_bar(self, source: str, stream: int, text: bytes) -> None:
        """Shows the state of a progress bar: in place on a terminal, else as a line at times."""
        now_s = time.monotonic()
        if now_s < self._next_update_s.get((source, stream), 0.0):
            return
        terminal = self._terminal[stream]
        pause_s = _UPDATE_S if terminal else _UPDATE_IN_FILES_S
        self._next_update_s[source, stream] = now_s + pause_s
        line = self._prefix_of(source) + text
        if terminal:
            columns = shutil.get_terminal_size().columns
            shown = line.decode(errors="replace")[: columns - 1].encode(errors="replace")
            self._write(stream, _CLEAR_LINE + shown)
            self._bar_shown = True
        else:
            self._write(stream, line + b"\n")

    def _write(self, stream: int, data: bytes) -> None:
        if self._bar_shown and self._terminal[stream]:
            data = _CLEAR_LINE + data.removeprefix(_CLEAR_LINE)
            self._bar_shown = False
        left = memoryview(data)
        while left and not self.closed:
            try:
                left = left[os.write(stream, left) :]
            except BlockingIOError:  # another process made the terminal or pipe non-blocking
                select.select([], [stream], [])
            except OSError as error:  # nobody reads it, or the disk is full
                self.closed = True
                if error.errno != errno.EPIPE:
                    self._tell_unwritable(stream, error)

    def _tell_unwritable(self, stream: int, error: OSError) -> None:
        name = "output" if stream == OUT else "error"
        text = f"farandole run: standard {name} cannot be written: {error.strerror}\n"
        with contextlib.suppress(OSError):
            os.write(ERR, text.encode())

    def _keep(self, path: Path, data: bytes) -> None:
        """Appends to a file of --output-dir. Ranks go on if it cannot be written any more."""
        if path in self._broken:
            return
        try:
            if path not in self._files:
                path.parent.mkdir(exist_ok=True)
                self._files[path] = path.open("wb", buffering=0)
            left = memoryview(data)
            while left:
                left = left[self._files[path].write(left) :]
        except OSError as error:
            self._broken.add(path)
            self.say(
                f"farandole run: {path} ends here, since it cannot be written: {error.strerror}; "
                "the run goes on"
            )
