# SPDX-License-Identifier: Apache-2.0
"""A row of a heat map: a picture one pixel high, light for little and dark for much.

The style inverts it on a dark page, where many rows of little would be bright.
"""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Sequence

_LEVELS = 15
# Light to dark evenly, so that it is read the same in grey; the first is for what is unknown.
_PALETTE = bytes(
    channel
    for level in range(_LEVELS + 1)
    for channel in (
        (255, 255, 255)
        if level == 0
        else (
            round(250 - 225 * (level - 1) / (_LEVELS - 1)),
            round(245 - 200 * (level - 1) / (_LEVELS - 1)),
            round(225 - 120 * (level - 1) / (_LEVELS - 1)),
        )
    )
)


def strip(values: Sequence[float | None], top: float, words: str) -> str:
    """An <img> that has its picture within; ``words`` say the same. Unknown is transparent."""
    levels = [_level(value, top) for value in values]
    return f'<img alt="{words}" src="data:image/png;base64,{_png(levels)}">'


def scale(top: str) -> str:
    """What the colours mean."""
    return f'<span class="scale">0 {strip(range(_LEVELS), _LEVELS - 1, "to")} {top}</span>'


def _level(value: float | None, top: float) -> int:
    if value is None:
        return 0
    return 1 + round((_LEVELS - 1) * min(1.0, max(0.0, value / top)))


def _png(levels: Sequence[int]) -> str:
    """Four bits a pixel, by a palette. https://www.w3.org/TR/png/."""
    pairs = zip(levels[::2], [*levels[1::2], 0], strict=False)
    pixels = b"\0" + bytes(first << 4 | second for first, second in pairs)
    header = struct.pack(">IIBBBBB", len(levels), 1, 4, 3, 0, 0, 0)
    png = b"\x89PNG\r\n\x1a\n" + b"".join(
        _chunk(kind, data)
        for kind, data in (
            (b"IHDR", header),
            (b"PLTE", _PALETTE),
            (b"tRNS", b"\0"),
            (b"IDAT", zlib.compress(pixels, 9)),
            (b"IEND", b""),
        )
    )
    return base64.b64encode(png).decode()


def _chunk(kind: bytes, data: bytes) -> bytes:
    return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
