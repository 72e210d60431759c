# SPDX-License-Identifier: Apache-2.0
"""Cuts what a rank writes into lines."""

from __future__ import annotations

LONGEST_BYTES = 1 << 20
"""Of a line; a longer one is printed in parts."""


class LineCutter:
    """Takes the bytes of one stream as they come. Not thread-safe.

    A carriage return goes back to the start of the line, as progress bars do: what stood there is
    replaced by what follows, so a line is what a terminal would show last.
    """

    def __init__(self) -> None:
        self._rest = b""

    @property
    def shown(self) -> bytes | None:
        """What the unfinished line shows before its last carriage return; None without one."""
        segments = self._rest.split(b"\r")
        return segments[-2] if len(segments) > 1 and segments[-2] else None

    def feed(self, data: bytes) -> list[bytes]:
        """The lines that ``data`` completes, without their ends."""
        *complete, rest = data.split(b"\n")
        if complete:
            complete[0] = self._rest + complete[0]
        else:
            rest = self._rest + rest
        if b"\r" in rest:
            rest = b"\r".join(rest.split(b"\r")[-2:])
        lines = [_last_segment(line) for line in complete]
        if len(rest) > LONGEST_BYTES:
            lines.append(_last_segment(rest))
            rest = b""
        self._rest = rest
        return lines

    def end(self) -> list[bytes]:
        """The last line if it has no end."""
        rest, self._rest = _last_segment(self._rest), b""
        return [rest] if rest else []


def _last_segment(line: bytes) -> bytes:
    """What a terminal shows of a line with carriage returns."""
    return line.rstrip(b"\r").rpartition(b"\r")[2]
