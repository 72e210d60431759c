# SPDX-License-Identifier: Apache-2.0
"""What a training changes, which ranks commit, restore and share."""

from __future__ import annotations

import queue
from collections.abc import Callable, Iterable
from typing import Any

from farandole import elastic_meeting as meeting
from farandole.elastic.interrupt import HostsUpdatedInterrupt, HostUpdateResult


class State:
    """Base of states: a subclass says how to save(), restore() and sync().

    Threads: on_hosts_updated() may be called by any, all else by the one that trains.

    Args:
        bcast_object: Gives all ranks the object of rank 0. Collective.
        get_rank: This rank.
    """

    def __init__(self, bcast_object: Callable[[Any], Any], get_rank: Callable[[], int]) -> None:
        self._bcast_object = bcast_object
        self._rank = get_rank
        self._host_messages: queue.Queue[tuple[float, int]] = queue.Queue()
        self._last_updated_timestamp = 0.0
        self._reset_callbacks: list[Callable[[], Any]] = []
        self._after_commit: Callable[[State], Any] | None = None

    def register_reset_callbacks(self, callbacks: Iterable[Callable[[], Any]]) -> None:
        """Add functions that are called when ranks have met again, before the next sync()."""
        self._reset_callbacks.extend(callbacks)

    def on_reset(self) -> None:
        """Called when ranks have met again: reset(), then the callbacks."""
        self._host_messages = queue.Queue()
        self.reset()
        for callback in self._reset_callbacks:
            callback()

    def on_hosts_updated(self, timestamp: float, update_res: int) -> None:
        """Note that hosts have changed; check_host_updates() on rank 0 takes it up."""
        self._host_messages.put((timestamp, update_res))

    def commit(self) -> None:
        """save(), then check_host_updates(). Collective.

        Raises:
            HostsUpdatedInterrupt: on all ranks, if hosts have changed.
        """
        self.save()
        meeting.standing.commits += 1
        if self._after_commit is not None:
            self._after_commit(self)
        self.check_host_updates()

    def check_host_updates(self) -> None:
        """Look whether the launcher has places for more ranks, or less. Collective.

        Raises:
            HostsUpdatedInterrupt: on all ranks, if so.
        """
        if self._rank() == 0 and (news := meeting.news()) is not None:
            self.on_hosts_updated(*news)
        previous = latest = self._last_updated_timestamp
        update = int(HostUpdateResult.no_update)
        while not self._host_messages.empty():
            timestamp, result = self._host_messages.get()
            if timestamp > latest:
                latest, update = timestamp, update | result
        previous, latest, update = self._bcast_object((previous, latest, update))
        self._last_updated_timestamp = latest
        if latest > previous:
            raise HostsUpdatedInterrupt(update == HostUpdateResult.removed)

    def save(self) -> None:
        """Keep a copy of all in this host's memory."""
        raise NotImplementedError

    def restore(self) -> None:
        """Go back to what save() has kept."""
        raise NotImplementedError

    def sync(self) -> None:
        """Give all ranks what rank 0 has. Collective."""
        raise NotImplementedError

    def reset(self) -> None:
        """Fit what depends on the ranks to the new ones; before sync()."""

    def _kept(self) -> Any:
        """What save() has kept, to be pickled for processes that start later; None: it cannot."""
        return None

    def _take_kept(self, kept: Any) -> None:
        """Become what another process has kept."""
        raise NotImplementedError


class ObjectState(State):
    """A state of Python objects, which are its attributes.

    Args:
        bcast_object: Gives all ranks the object of rank 0. Collective.
        get_rank: This rank.
        kwargs: The attributes' names and first values.
    """

    def __init__(
        self,
        bcast_object: Callable[[Any], Any],
        get_rank: Callable[[], int],
        **kwargs: Any,
    ) -> None:
        self._saved_state = kwargs
        self._set_attributes()
        super().__init__(bcast_object, get_rank)

    def save(self) -> None:
        """Keep the values that the attributes have now."""
        self._keep_attributes()

    def restore(self) -> None:
        """Give the attributes the values that save() has kept."""
        self._set_attributes()

    def sync(self) -> None:
        """Give the attributes the values that they have on rank 0, and keep these. Collective."""
        if self._saved_state:
            self._keep_attributes()
            self._saved_state = self._bcast_object(self._saved_state)
            self._set_attributes()

    def _kept(self) -> Any:
        return self._saved_state

    def _take_kept(self, kept: Any) -> None:
        self._saved_state = kept
        self._set_attributes()

    def _keep_attributes(self) -> None:
        self._saved_state = {name: getattr(self, name) for name in self._saved_state}

    def _set_attributes(self) -> None:
        for name, value in self._saved_state.items():
            setattr(self, name, value)
