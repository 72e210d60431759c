# SPDX-License-Identifier: Apache-2.0
"""Records in the store of an elastic launcher, in which strangers may write as well.

Each is JSON, sealed with the job's secret. What is not so, or has other fields, is dropped: it is
as if it were not there.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable
from typing import Any, TypeVar

from torch._C._distributed_c10d import Store

from farandole import job_secret

_T = TypeVar("_T")
_logger = logging.getLogger("farandole")


class Records:
    """The records of one process. Used by one thread."""

    def __init__(self, store: Store, secret: str) -> None:
        self._store, self._secret = store, secret
        self._has_warned = False

    def write(self, key: str, value: Any) -> None:
        """Writes a record, in place of what is there."""
        self._store.set(key, job_secret.sealed(self._secret, key, json.dumps(value)))

    def read(self, key: str, check: Callable[[Any], _T | None]) -> _T | None:
        """What ``check`` makes of the record; None: there is none, or one that is dropped."""
        if not self._store.check([key]):
            return None
        record = self._store.get(key)
        try:
            text = job_secret.unsealed(self._secret, key, record.decode())
            found = None if text is None else check(json.loads(text))
        except (ValueError, RecursionError):  # no UTF-8, or no JSON
            found = None
        if found is None:
            self._warn(key)
        return found

    def _warn(self, key: str) -> None:
        if not self._has_warned:
            _logger.warning(
                "the record %r in the elastic launcher's store does not belong to this job and "
                "is ignored, as other such records will be: another program writes to the store.",
                key,
            )
        self._has_warned = True


def is_count(value: Any) -> bool:
    """Whether it is an int of at least 0, and no bool."""
    return type(value) is int and value >= 0
