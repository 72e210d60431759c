# SPDX-License-Identifier: Apache-2.0
"""Prints on the driver what ranks do."""

from __future__ import annotations

import contextlib
from typing import IO

from farandole.run.lines import LineCutter
from farandole.spark.task import ERR, OUT


class Output:
    """Text streams of the driver; those of a notebook are no descriptors. Used by one thread."""

    def __init__(self, stdout: IO[str], stderr: IO[str]) -> None:
        self._targets = {OUT: stdout, ERR: stderr}
        self._cutters: dict[tuple[int, int], LineCutter] = {}

    def say(self, text: str) -> None:
        """Prints a line as it is."""
        self._write(OUT, f"{text}\n")

    def feed(self, rank: int, stream: int, data: bytes) -> None:
        """Prints the lines that are complete, each after its rank."""
        cutter = self._cutters.setdefault((rank, stream), LineCutter())
        self._print(rank, stream, cutter.feed(data))

    def end(self) -> None:
        """Prints lines without an end."""
        for (rank, stream), cutter in self._cutters.items():
            self._print(rank, stream, cutter.end())

    def _print(self, rank: int, stream: int, lines: list[bytes]) -> None:
        self._write(
            stream, "".join(f"[{rank}] {line.decode(errors='replace')}\n" for line in lines)
        )

    def _write(self, stream: int, text: str) -> None:
        with contextlib.suppress(OSError, ValueError):  # closed: nobody reads it; ranks go on
            self._targets[stream].write(text)
            self._targets[stream].flush()
