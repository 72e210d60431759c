# SPDX-License-Identifier: Apache-2.0
"""The name of the function that the program has called, for errors about ranks that have not."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

from farandole import _C

_Parameters = ParamSpec("_Parameters")
_Result = TypeVar("_Result")


def collective(
    function: Callable[_Parameters, _Result],
) -> Callable[_Parameters, _Result]:
    """Mark a function that all ranks call, and that does more than the collective of its name."""
    owner = function.__qualname__.rpartition(".")[0]
    name = f"{owner if function.__name__ == '__init__' else function.__name__}()"

    @wraps(function)
    def call(*args: _Parameters.args, **kwargs: _Parameters.kwargs) -> _Result:
        with _C.CalledFunction(name):
            return function(*args, **kwargs)

    return call
