# SPDX-License-Identifier: Apache-2.0
"""Reads and shows what other programs have written: names, texts and JSON of any kind.

What cannot be used is a ValueError, which callers make an error that names the file.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any


def is_folder(path: Path) -> bool:
    """Whether there is such a folder; False for names that no file can have."""
    try:
        return path.is_dir()
    except (OSError, ValueError):  # too long, not permitted, or with a zero
        return False


def json_of(text: str | bytes, *, finite: bool = True) -> Any:
    """What JSON describes.

    Args:
        text: In UTF-8 if it is bytes.
        finite: Whether NaN and infinities are refused, of which one cannot make an integer.

    Raises:
        ValueError: it is no JSON, is nested too deeply, has halves of characters, or a number that
            is not finite.
    """
    whole = text if isinstance(text, str) else str(text, "utf-8")
    try:
        found = json.loads(whole)
        if finite or _HALF.search(whole):
            json.dumps(found, ensure_ascii=False, allow_nan=not finite).encode()
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    return found


def shown(text: str) -> str:
    """For a page or a terminal: control characters and bytes that are no UTF-8 as escapes."""
    whole = text.encode("utf-8", "backslashreplace").decode()
    return whole.translate(_ESCAPES)


_HALF = re.compile(r"\\u[dD][89a-fA-F]")
_ESCAPES = {
    code: f"\\x{code:02x}" for code in [*range(32), *range(127, 160)] if code not in b"\t\n"
}
