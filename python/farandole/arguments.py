# SPDX-License-Identifier: Apache-2.0
"""Checks what users pass to functions on tensors, so that a wrong type is an InvalidArgument."""

from __future__ import annotations

import math
import operator
from collections.abc import Iterable, Sequence
from datetime import timedelta
from typing import Any, TypeAlias, cast

import torch
import torch.distributed as dist

from farandole.errors import InvalidArgument, sentences

Timeout: TypeAlias = timedelta | float
Tensors: TypeAlias = Sequence[torch.Tensor]

_OPS = {
    "sum": dist.ReduceOp(dist.ReduceOp.SUM),
    "avg": dist.ReduceOp(dist.ReduceOp.AVG),
    "min": dist.ReduceOp(dist.ReduceOp.MIN),
    "max": dist.ReduceOp(dist.ReduceOp.MAX),
    "product": dist.ReduceOp(dist.ReduceOp.PRODUCT),
    "band": dist.ReduceOp(dist.ReduceOp.BAND),
    "bor": dist.ReduceOp(dist.ReduceOp.BOR),
    "bxor": dist.ReduceOp(dist.ReduceOp.BXOR),
}
_MOST = 2**31 - 1


def wrong(function: str, name: str, value: object, takes: str) -> InvalidArgument:
    """The error for an argument of a type, or out of a range, that the function does not take."""
    shown = f"{value!r}" if isinstance(value, (str, int, float, timedelta)) else "an object"
    return InvalidArgument(
        sentences(
            "argument-type",
            f"{function}() got {shown} of type {type(value).__name__} as {name}.",
            f"{name} takes {takes}.",
            "pass such a value; help(farandole) lists the arguments of each function.",
        )
    )


def both(function: str, first: str, second: str, meaning: str) -> InvalidArgument:
    """The error for two arguments of which there may be one."""
    return InvalidArgument(
        sentences(
            "two-arguments-for-one",
            f"{function}() got both {first} and {second}.",
            f"each says {meaning}.",
            "pass one of them.",
        )
    )


def is_tensors(value: object) -> bool:
    """Whether it is a list or tuple, as torch takes them where Farandole takes one tensor."""
    return isinstance(value, (list, tuple))


def tensor_of(function: str, name: str, value: object) -> torch.Tensor:
    """The same, if it is a tensor.

    Raises:
        InvalidArgument: it is not.
    """
    if isinstance(value, torch.Tensor):
        return value
    raise wrong(function, name, value, "a torch.Tensor")


def tensors_of(function: str, name: str, value: object, count: int | None = None) -> Tensors:
    """The same, if it is a list or tuple of ``count`` tensors.

    Raises:
        InvalidArgument: it is not.
    """
    if not isinstance(value, (list, tuple)):
        raise wrong(function, name, value, "a list of tensors")
    for tensor in value:
        tensor_of(function, f"each element of {name}", tensor)
    if count is not None and len(value) != count:
        raise InvalidArgument(
            sentences(
                "one-tensor-per-rank",
                f"{function}() got {len(value)} tensors as {name} in a group of {count} ranks.",
                "it must hold one tensor for each rank.",
                f"pass a list of {count} tensors.",
            )
        )
    return value


def filled(function: str, tensors: Iterable[torch.Tensor]) -> None:
    """Check tensors that a collective is to fill: torch hands copies of lazy views on.

    Raises:
        InvalidArgument: one is a conjugated or negated view.
    """
    if any(tensor.is_conj() or tensor.is_neg() for tensor in tensors):
        raise InvalidArgument(
            sentences(
                "conjugated-output",
                f"{function}() cannot fill a conjugated or negated view.",
                "the values in its memory differ from the values that it shows.",
                "pass tensor.resolve_conj() or tensor.resolve_neg().",
            )
        )


def int_of(function: str, name: str, value: object, most: int = _MOST) -> int:
    """``value`` as an int between -``most`` and ``most``, by default of 32 bits.

    Raises:
        InvalidArgument: it is none, or beyond.
    """
    takes = "an int"
    try:
        number = operator.index(cast("Any", value))
    except TypeError:
        raise wrong(function, name, value, takes) from None
    if abs(number) > most:
        raise wrong(function, name, value, takes)
    return number


def float_of(function: str, name: str, value: object) -> float:
    """``value`` as a float.

    Raises:
        InvalidArgument: it is no number.
    """
    if isinstance(value, str):  # float() would read it
        raise wrong(function, name, value, "a number")
    try:
        return float(cast("Any", value))
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise wrong(function, name, value, "a number") from None


def ints_of(function: str, name: str, value: object) -> list[int]:
    """``value`` as a list of ints.

    Raises:
        InvalidArgument: it is no list, or not of ints.
    """
    if isinstance(value, (str, bytes)) or not isinstance(value, Iterable):
        raise wrong(function, name, value, "a list of ints")
    return [int_of(function, f"each element of {name}", each) for each in value]


def timeout_of(function: str, value: object) -> timedelta | None:
    """A timedelta of ``value``, which is one, a number of seconds, or None.

    Raises:
        InvalidArgument: it is something else, or not above 0.
    """
    if value is None:
        return None
    takes = "a timedelta or a number of seconds, larger than 0"
    if isinstance(value, timedelta):
        timeout = value
    elif isinstance(value, (int, float)) and not isinstance(value, bool) and math.isfinite(value):
        try:
            timeout = timedelta(seconds=value)
        except OverflowError:
            raise wrong(function, "timeout", value, takes) from None
    else:
        raise wrong(function, "timeout", value, takes)
    if timeout <= timedelta(0):
        raise wrong(function, "timeout", value, takes)
    return max(timeout, timedelta(milliseconds=1))  # C++ counts milliseconds


def op_of(function: str, op: object) -> dist.ReduceOp:
    """The reduction that a name or one of torch's constants means.

    Raises:
        InvalidArgument: none has that name, or it is something else.
    """
    if isinstance(op, dist.ReduceOp):
        return op
    if isinstance(op, dist.ReduceOp.RedOpType):
        return dist.ReduceOp(op)
    if isinstance(op, str):
        if op.lower() in _OPS:
            return _OPS[op.lower()]
        raise InvalidArgument(
            sentences(
                "reduction-name",
                f"op is '{op}'.",
                "there is no reduction of that name.",
                f"pass one of {', '.join(_OPS)}, or a torch.distributed.ReduceOp.",
            )
        )
    raise wrong(function, "op", op, "the name of a reduction or a torch.distributed.ReduceOp")


def group_of(function: str, group: object) -> dist.ProcessGroup:
    """The same, or the default group for None.

    Raises:
        InvalidArgument: there is no default group yet, or it is no group of this rank.
    """
    if isinstance(group, dist.ProcessGroup):
        return group
    if group is None:
        return default_group()
    if group is dist.GroupMember.NON_GROUP_MEMBER:
        raise InvalidArgument(
            sentences(
                "not-a-member",
                f"{function}() was called with a group that this rank is not in.",
                "torch.distributed.new_group() returns NON_GROUP_MEMBER on such ranks.",
                "call it only on ranks of the group.",
            )
        )
    raise wrong(function, "group", group, "a torch.distributed.ProcessGroup or None")


def default_group() -> dist.ProcessGroup:
    """The group of all ranks.

    Raises:
        InvalidArgument: there is none yet.
    """
    group = dist.group.WORLD
    if group is None:
        raise InvalidArgument(
            sentences(
                "no-default-group",
                "there is no default group.",
                "init_process_group() has not been called in this process, or destroy() was.",
                "call farandole.init_process_group() first.",
            )
        )
    return group


def peer_of(
    function: str,
    group: dist.ProcessGroup,
    *,
    name: str,
    globally: object,
    in_group: object,
    ours: object,
    our_name: str = "root",
) -> int | None:
    """The rank in ``group`` that one of three arguments names; None if none is given.

    Args:
        function: Whose arguments they are.
        group: Where ``in_group`` and ``ours`` count.
        name: "src" or "dst": torch's name of ``globally``; ``in_group`` is "group_" and this.
        globally: Counted in the default group.
        in_group: Torch's name for ``ours``.
        ours: By our own name.
        our_name: That name.

    Raises:
        InvalidArgument: there are several, or it is not in the group.
    """
    given = {
        each: value
        for each, value in ((name, globally), (f"group_{name}", in_group), (our_name, ours))
        if value is not None
    }
    if len(given) > 1:
        first, second, *_ = given
        raise both(function, first, second, f"which rank is the {our_name}")
    if globally is not None:
        number = int_of(function, name, globally)
        try:
            return dist.get_group_rank(group, number)
        except ValueError:
            raise InvalidArgument(
                sentences(
                    "not-in-group",
                    f"{function}() got {name}={number}, which is not a rank of the group.",
                    f"{name} is a rank of the default group, as in torch.",
                    f"pass group_{name} or {our_name}, which are ranks of the group.",
                )
            ) from None
    return next((int_of(function, each, value) for each, value in given.items()), None)
