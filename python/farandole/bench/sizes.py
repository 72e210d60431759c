# SPDX-License-Identifier: Apache-2.0
"""Sizes in bytes as nccl-tests takes them (8, 4K, 1G), and as people read them."""

from __future__ import annotations

import re
from collections.abc import Iterator

from farandole.errors import InvalidArgument, sentences

KIB, MIB, GIB = 1024, 1024**2, 1024**3
_UNITS = {"": 1, "K": KIB, "M": MIB, "G": GIB}


def size_of(option: str, text: str) -> int:
    """The bytes that ``option`` was given.

    Raises:
        InvalidArgument: it is no size, or 0.
    """
    found = re.fullmatch(r"(\d+)([KMG]?)(iB|B)?", text, re.IGNORECASE | re.ASCII)
    size = int(found[1]) * _UNITS[found[2].upper()] if found else 0
    if size > 0:
        return size
    raise InvalidArgument(
        sentences(
            "bench-size",
            f"{option} was '{text}'.",
            "it is a number of bytes above 0, with K, M or G for 1024, 1024^2 or 1024^3 of them.",
            f"pass a size such as {option} 8, 4K or 1G.",
        )
    )


def sizes_between(least: int, most: int, *, factor: int = 0, step: int = 0) -> Iterator[int]:
    """From ``least`` to ``most``, each ``factor`` times the one before or ``step`` bytes more."""
    size = least
    while size <= most:
        yield size
        size = size + step if step else size * factor


def size_text(size: int) -> str:
    """4 B, 16 KiB, 64 MiB, 1 GiB; bytes where no unit divides them."""
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"
