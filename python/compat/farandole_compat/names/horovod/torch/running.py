# SPDX-License-Identifier: Apache-2.0
"""What asynchronous operations return, and Horovod's constants for reductions."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import Any

from farandole import arguments
from farandole.errors import InvalidArgument, sentences
from farandole.named import Handle, NamedCollectives
from torch import Tensor

from horovod.common.exceptions import as_horovod

Average, Sum, Adasum, Min, Max, Product = range(6)
_OPS = ("average", "sum", "adasum", "min", "max", "product")


class Running:
    """What asynchronous operations return; synchronize() takes its result once."""

    def __init__(
        self, named: NamedCollectives, handle: Handle, result: Callable[[list[Tensor]], Any]
    ) -> None:
        self.named, self.handle, self._result = named, handle, result
        self._is_taken = False

    def take(self) -> Any:
        """Wait; the result, and None the second time."""
        if self._is_taken:
            return None
        self._is_taken = True
        return self._result(self.named.wait(self.handle))


def first_of(results: list[Tensor]) -> Tensor:
    """The result of an operation on one tensor."""
    return results[0]


def op_name(op: int | None, average: bool | None = None) -> str:
    """Farandole's name of one of Horovod's reductions.

    Raises:
        InvalidArgument: there is none, or both ``op`` and ``average`` are given.
    """
    if op is not None and average is not None:
        raise InvalidArgument(
            sentences(
                "horovod-op-and-average",
                "an operation got both op and average.",
                "op is the newer name of the same.",
                "pass op alone.",
            )
        )
    if average is not None:
        warnings.warn(
            "the argument average is Horovod's old name: pass op=hvd.Average or op=hvd.Sum.",
            DeprecationWarning,
            stacklevel=3,
        )
        op = Average if average else Sum
    if op is None:
        op = Average
    if op not in range(len(_OPS)):
        raise InvalidArgument(
            sentences(
                "horovod-op",
                f"an operation got op={op!r}.",
                "it takes one of Average, Sum, Adasum, Min, Max and Product.",
                "pass hvd.Average, say.",
            )
        )
    return _OPS[op]


def poll(handle: Running) -> bool:
    """Whether synchronize() would return at once."""
    if not isinstance(handle, Running):
        raise arguments.wrong("poll", "handle", handle, "what an asynchronous operation returned")
    return handle.handle.done


def synchronize(handle: Running | Callable[[], Tensor]) -> Any:
    """Wait for an asynchronous operation; its result, and None the second time.

    Raises:
        InvalidArgument: it is no handle.
        HorovodInternalError: the ranks' calls do not fit together, or a rank was lost.
    """
    if not isinstance(handle, Running) and not callable(handle):
        raise arguments.wrong(
            "synchronize", "handle", handle, "what an asynchronous operation returned"
        )
    with as_horovod():
        return handle.take() if isinstance(handle, Running) else handle()
