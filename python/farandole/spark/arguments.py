# SPDX-License-Identifier: Apache-2.0
"""What run() takes, checked on the driver before anything starts.

The names are those of the caller's arguments: horovod.spark.run() has others.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from farandole.errors import InvalidArgument, sentences


def check_function(value: object) -> None:
    """Raises InvalidArgument unless it can be called."""
    if not callable(value):
        raise _wrong("function", value, "is called on each rank", "a function, or another callable")


def check_args(value: object) -> None:
    """Raises InvalidArgument unless it is a sequence, which a text is not meant as."""
    if not isinstance(value, Sequence) or isinstance(value, str | bytes):
        raise _wrong("args", value, "has the function's arguments in order", "a tuple, as (5,)")


def check_kwargs(value: object) -> None:
    """Raises InvalidArgument unless it is None or a mapping of names."""
    if value is not None and not (
        isinstance(value, Mapping) and all(isinstance(each, str) for each in value)
    ):
        raise _wrong("kwargs", value, "has arguments by name", 'a dict, as {"epochs": 5}')


def check_num_proc(value: object) -> None:
    """Raises InvalidArgument unless it is None or a number of ranks."""
    if value is None or (_is_number(value, int) and value >= 1):  # type: ignore[operator]
        return
    raise InvalidArgument(
        sentences(
            "spark-num-proc",
            f"farandole.spark.run() got num_proc={value!r}.",
            "it is the number of ranks.",
            "pass an int of at least 1, or None for all slots of the cluster.",
        )
    )


def check_seconds(name: str, value: object) -> None:
    """Raises InvalidArgument unless it is a number above 0."""
    if not (_is_number(value, int | float) and value > 0):  # type: ignore[operator]
        raise _wrong(name, value, "is how long ranks may take to start", "seconds, above 0")


def check_variables(name: str, value: object) -> None:
    """Raises InvalidArgument unless it is None or a mapping of texts that variables may have."""
    if value is None or (isinstance(value, Mapping) and all(map(_is_variable, value.items()))):
        return
    raise _wrong(name, value, "has environment variables for ranks", 'texts, as {"SEED": "5"}')


def check_python(name: str, value: object) -> None:
    """Raises InvalidArgument unless it is None or a path.

    The driver does not look whether the file is there: the executors may have other files.
    """
    if value is not None and not (isinstance(value, str | os.PathLike) and os.fspath(value)):
        raise _wrong(name, value, "is the Python of the ranks", "its path on the executors")


def _is_number(value: object, kind: type | object) -> bool:
    return isinstance(value, kind) and not isinstance(value, bool)  # type: ignore[arg-type]


def _is_variable(item: tuple[object, object]) -> bool:
    name, value = item
    if not (isinstance(name, str) and isinstance(value, str)):
        return False
    return bool(name) and "=" not in name and "\0" not in name + value


def _wrong(name: str, value: object, what: str, fix: str) -> InvalidArgument:
    return InvalidArgument(
        sentences(
            "spark-argument",
            f"farandole.spark.run() got {name}={value!r}.",
            f"it {what}.",
            f"pass {fix}.",
        )
    )
