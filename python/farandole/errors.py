# SPDX-License-Identifier: Apache-2.0
"""What Farandole raises: the C++ exceptions of farandole/error.h by the same names.

The text of each has three parts, one a line: what happened (operation, group, rank), ``why:`` and
``fix:``. It ends with the message's name in brackets, its heading in docs/errors.md. Both
``farandole`` and ``torch.distributed`` over its backend raise them.
"""

from __future__ import annotations

import builtins

__all__ = [
    "AbortedError",
    "BackwardError",
    "CheckpointError",
    "CommError",
    "Error",
    "InvalidArgument",
    "MismatchError",
    "NotSupported",
    "PeerFailure",
    "StepError",
    "SystemError",
    "TimeoutError",
]


class Error(RuntimeError):
    """Base of everything Farandole raises."""

    ranks: tuple[int, ...] = ()
    """At fault, counted in the group: dead, late, aborting, failed, or with another call than rank
    0; empty if they are unknown."""
    collective: str | None = None
    """The operation's name, as "all_reduce", "send", "backward" or "step"; None if unknown."""

    @property
    def rank(self) -> int | None:
        """The first of ``ranks``."""
        return self.ranks[0] if self.ranks else None


class InvalidArgument(Error, ValueError):
    """Misuse that the caller can see alone: a bad count, dtype or rank. Nothing was sent."""


class CommError(Error):
    """Base of what goes wrong between ranks; the group cannot be used any more."""


class MismatchError(CommError):
    """The ranks called different collectives. The group stays usable."""


class BackwardError(CommError):
    """The backward passes of the ranks do not belong together. The group stays usable."""


class StepError(CommError):
    """The ranks cannot take one optimizer step together. The group stays usable."""


class PeerFailure(CommError):
    """A peer died or left the group while this rank waited for it."""


class TimeoutError(CommError, builtins.TimeoutError):  # noqa: A001
    """A peer did not arrive in time; the text names it and the last collective that it reached."""


class AbortedError(CommError):
    """The group was aborted, here or by a peer that met an error."""


class SystemError(CommError):  # noqa: A001
    """A system call failed (memory, descriptors, sockets); the text names it."""


class CheckpointError(Error, OSError):
    """A checkpoint could not be saved or loaded. Nothing was changed."""


class NotSupported(Error, NotImplementedError):
    """This build or machine cannot do what was asked; the text says what can."""


def sentences(name: str, what: str, why: str, fix: str) -> str:
    """The text of an error; ``name`` is its heading in docs/errors.md."""
    return f"{what}\nwhy: {why}\nfix: {fix} [{name}]"


for _class in (
    Error,
    InvalidArgument,
    CommError,
    MismatchError,
    BackwardError,
    StepError,
    PeerFailure,
    TimeoutError,
    AbortedError,
    SystemError,
    CheckpointError,
    NotSupported,
):
    _class.__module__ = "farandole"  # where users find and catch them
