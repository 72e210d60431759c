# SPDX-License-Identifier: Apache-2.0
"""A collection of a trial: its regular expressions come from a file, and may take for ever."""

from __future__ import annotations

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

from farandole.debugger.collection import Collection
from farandole.errors import InvalidArgument, sentences

_LIMIT_S = 2.0


class SavedCollection(Collection):
    """Which gives up if a regular expression does not come to an end.

    A signal limits the search, which only the main thread can take. In other threads, and in
    programs that use SIGALRM themselves, nothing does.
    """

    _is_slow = False

    def has(self, tensor_name: str) -> bool:
        """Whether a tensor of this name belongs to it.

        Raises:
            InvalidArgument: a search took too long, now or before.
        """
        if not self._is_slow:
            try:
                with _limited():
                    return super().has(tensor_name)
            except _TooLongError:
                self._is_slow = True
        raise InvalidArgument(
            sentences(
                "debugger-slow-regex",
                f"the collection {self.name!r} of a trial cannot be used.",
                f"the search for {list(self.include_regex)} in the name of a tensor did not end "
                f"within {_LIMIT_S:g} s.",
                "use regular expressions without a repetition in a repetition, as (a+)+.",
            )
        )


class _TooLongError(Exception):
    """In the middle of a search."""


def _end_search(*_: object) -> None:
    raise _TooLongError


@contextmanager
def _limited() -> Iterator[None]:
    is_main = threading.current_thread() is threading.main_thread()
    if not is_main or signal.getsignal(signal.SIGALRM) != signal.SIG_DFL:
        yield
        return
    signal.signal(signal.SIGALRM, _end_search)
    signal.setitimer(signal.ITIMER_REAL, _LIMIT_S)
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, signal.SIG_DFL)
