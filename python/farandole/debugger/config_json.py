# SPDX-License-Identifier: Apache-2.0
"""Configurations as JSON: what all of them check."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from farandole.errors import InvalidArgument, sentences
from farandole.foreign_text import json_of


def object_of(kind: str, text: str) -> dict[str, Any]:
    """The object that JSON describes.

    Raises:
        InvalidArgument: it describes none; ``kind`` is what it was to be.
    """
    try:
        found = json_of(text)
    except ValueError as error:
        raise wrong(kind, text, f"{error}") from error
    return checked(kind, found)


def checked(kind: str, found: Any, keys: Iterable[str] | None = None) -> dict[str, Any]:
    """The same as a dictionary.

    Raises:
        InvalidArgument: it is none, or has other keys.
    """
    if not isinstance(found, Mapping):
        raise wrong(kind, found, f"its type is {type(found).__name__}")
    unknown = sorted(str(key) for key in found if keys is not None and key not in keys)
    if unknown:
        raise wrong(kind, found, f"it has {', '.join(unknown)}")
    return dict(found)


def wrong(kind: str, found: object, why: str) -> InvalidArgument:
    """What is raised for a description of no ``kind``."""
    return InvalidArgument(
        sentences(
            "debugger-config",
            f"{found!r} describes no {kind}.",
            f"{why}.",
            "pass what to_json_dict() or to_json() of such an object returns.",
        )
    )
