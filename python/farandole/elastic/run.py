# SPDX-License-Identifier: Apache-2.0
"""Runs a training function until it returns, on whatever ranks are left."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar, cast

from farandole import distributed
from farandole import elastic_meeting as meeting
from farandole.elastic import kept_commits
from farandole.elastic.interrupt import HostsUpdatedInterrupt
from farandole.elastic.state import State
from farandole.elastic_meeting import first_line_of
from farandole.errors import CommError, NotSupported, sentences

_P = ParamSpec("_P")
_T = TypeVar("_T")
_S = TypeVar("_S", bound=State)
_logger = logging.getLogger("farandole")


def new_group() -> None:
    """End the default group and all others, and make one of the ranks that there are now."""
    distributed.destroy()
    distributed.init_process_group()


def run(
    function: Callable[Concatenate[_S, _P], _T], *, reset: Callable[[], None] = new_group
) -> Callable[Concatenate[_S, _P], _T]:
    """Decorate a function that trains, whose first argument is a State.

    A call of it is: sync() of the state, the function, and what it returns. If it raises a
    CommError, the state goes back to its last commit; if a HostsUpdatedInterrupt, it stays as it
    is. Then ranks meet again, the state's reset callbacks are called, and all begins anew.

    There must be no collective between init_process_group() and this call: ranks that come later
    would call it while the others sync.

    Args:
        function: Of each rank.
        reset: Ends the group and makes it anew.

    Raises:
        CommError: it came again without a commit and with the same ranks in between, or the
            launcher ends the job.
    """

    @functools.wraps(function)
    def call(state: _S, *args: _P.args, **kwargs: _P.kwargs) -> _T:
        course = _Course(state)
        while True:
            try:
                course.sync()
                result = function(state, *args, **kwargs)
                break
            except CommError as error:
                course.go_back(error)
            except HostsUpdatedInterrupt as interrupt:
                course.stay(interrupt)
            meeting.until_formed(lambda: _meet_again(reset, state))
        course.end()
        return result

    return cast("Callable[Concatenate[_S, _P], _T]", call)


def _meet_again(reset: Callable[[], None], state: State) -> None:
    if distributed.is_initialized() and distributed.world_size() > 1:
        _check_place()
    reset()
    state.on_reset()


def _check_place() -> None:
    """Fail where each rank would find itself alone."""
    if meeting.is_elastic() or distributed.is_launched():
        return
    raise NotSupported(
        sentences(
            "elastic-no-launcher",
            "the ranks cannot meet again.",
            "the program has told them where to meet, and no launcher's variables do.",
            "start it with `farandole run` or torchrun, and call init_process_group() without "
            "arguments.",
        )
    )


class _Course:
    """From one call to its end. Used by one thread."""

    def __init__(self, state: State) -> None:
        self._state = state
        self._kept = kept_commits.of_this_job()
        self._is_recovered = self._kept is None
        self._failed: tuple[int, list[int]] | None = None  # at which commit, and with whom
        meeting.standing.needs_sync = True
        if self._kept is not None:
            state._after_commit = self._kept.write

    def sync(self) -> None:
        """Begin where rank 0 is, unless all are there already. Collective."""
        if not meeting.standing.needs_sync:
            return
        if self._kept is not None and not self._is_recovered:
            self._kept.recover(self._state)
            self._is_recovered = True
        self._state.sync()
        standing = meeting.standing
        standing.commits = self._state._bcast_object(standing.commits)

    def go_back(self, error: CommError) -> None:
        """Restore the last commit; raise the error if it has come twice there."""
        commits = meeting.standing.commits
        failed = (commits, meeting.members())
        if failed == self._failed or meeting.is_over():
            raise error
        _logger.info(
            "elastic: back to commit %d: %s", meeting.standing.commits, first_line_of(error)
        )
        self._failed = failed
        self._state.restore()
        meeting.standing.needs_sync = True

    def stay(self, interrupt: HostsUpdatedInterrupt) -> None:
        """Go on from where the state is."""
        _logger.info("elastic: hosts have changed after commit %d.", meeting.standing.commits)
        meeting.standing.needs_sync = not (interrupt.skip_sync and meeting.is_elastic())

    def end(self) -> None:
        """The function has returned on this rank."""
        if self._kept is not None:
            self._kept.end_with_this_process()
