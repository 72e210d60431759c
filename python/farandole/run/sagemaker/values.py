# SPDX-License-Identifier: Apache-2.0
"""Values of a job's description: their types are checked, and they become text for the ranks."""

from __future__ import annotations

import json
from typing import Any

from farandole.errors import InvalidArgument, sentences

_SHOWN = 80


def wrong(
    key: str, value: Any, place: str, needed: str, fix: str = "correct the value"
) -> InvalidArgument:
    """The error for a value of a wrong type.

    Args:
        key: Its name.
        value: What it is.
        place: Where it was found.
        needed: What it takes; half a sentence.
        fix: Half a sentence.
    """
    shown = json.dumps(value, default=repr, skipkeys=True, ensure_ascii=False)
    shown = shown if len(shown) <= _SHOWN else f"{shown[:_SHOWN]}..."
    return InvalidArgument(
        sentences(
            "sagemaker-value",
            f"{key} of {place} is {shown}.",
            f"it takes {needed}.",
            f"{fix}.",
        )
    )


def text_of(value: Any, key: str, place: str) -> str:
    """A text that is not empty."""
    if not isinstance(value, str) or not value:
        raise wrong(key, value, place, "a text that is not empty")
    return value


def object_of(value: Any, key: str, place: str) -> dict[str, Any]:
    """An object of JSON."""
    if not isinstance(value, dict):
        raise wrong(key, value, place, "a JSON object")
    return value


def integer_of(value: Any, key: str, place: str, least: int, most: int | None = None) -> int:
    """An integer within limits."""
    is_integer = isinstance(value, int) and not isinstance(value, bool)
    if not is_integer or value < least or (most is not None and value > most):
        limits = f"of at least {least}" if most is None else f"from {least} to {most}"
        raise wrong(key, value, place, f"an integer {limits}")
    return int(value)


def variable_of(value: Any) -> str:
    """A value as SageMaker has it in the environment."""
    if value is None:
        return ""
    if isinstance(value, str):
        return value
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def argument_of(value: Any) -> str:
    """A hyperparameter as SageMaker has it on the command line."""
    if value is None:
        return ""
    if isinstance(value, dict):
        return ",".join(f"{key}={each}" for key, each in sorted(value.items()))
    return str(value)


def is_url(place: str) -> bool:
    """Whether it is an address, and not a path of this machine."""
    return "://" in place
