# SPDX-License-Identifier: Apache-2.0
"""Horovod's errors."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from farandole.elastic.interrupt import HostsUpdatedInterrupt
from farandole.errors import CommError

__all__ = ["HorovodInternalError", "HostsUpdatedInterrupt", "as_horovod"]


class HorovodInternalError(CommError):
    """An operation failed: ranks do not agree, or one was lost. Its cause is Farandole's error."""


@contextmanager
def as_horovod() -> Iterator[None]:
    """Farandole's errors between ranks become HorovodInternalErrors; misuse stays a ValueError."""
    try:
        yield
    except HorovodInternalError:
        raise
    except CommError as error:
        translated = HorovodInternalError(str(error))
        translated.ranks, translated.collective = error.ranks, error.collective
        raise translated from error
