# SPDX-License-Identifier: Apache-2.0
"""Collectives that ranks may start in different orders: they are matched by their names."""

from __future__ import annotations

import contextlib
import os
import threading
import time
from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from farandole import _C, distributed, elastic_meeting
from farandole.errors import (
    CommError,
    Error,
    InvalidArgument,
    MismatchError,
    NotSupported,
    sentences,
)
from farandole.named.adasum import is_possible
from farandole.named.agreement import Agreement, Decision, Outcome
from farandole.named.exchange import Exchange
from farandole.named.execution import Execution
from farandole.named.handle import Handle
from farandole.named.recorded_execution import RecordedExecution
from farandole.named.request import Request, Signature
from farandole.named.settings import Settings
from farandole.named.stall_watch import StallWatch
from farandole.named.timeline import Timeline
from farandole.start_thread import start_thread

_FOR_EVER = timedelta(days=3650)
_SHORTEST_PAUSE_S = 0.0002
_LONGEST_PAUSE_S = 0.005


class NamedCollectives:
    """Collectives of a group, each of which has a name; ranks may start them in any order.

    A name may be used again once its operation is done. What a rank waits for runs when all ranks
    have asked for it. Farandole's own functions cost a tenth, where all ranks call them in one
    order. Ranks agree over a group of their own (see agreement.py for the protocol), and data
    travel over another: the program's collectives are not touched.

    Who drives the rounds: the thread that waits for an operation, on its own, so nobody has to be
    woken; where nobody waits, a thread of this object, which sleeps when nothing is asked for.
    Threads: any.
    Fork: not in a forked child.
    """

    def __init__(
        self, ranks: Sequence[int] | None = None, settings: Settings | None = None
    ) -> None:
        """Make groups of ``ranks`` of the default group, all if None; each of those is in it.

        Collective for the default group, as farandole.new_group().
        """
        self._open(ranks, settings or Settings())

    def reopen(self, settings: Settings | None = None) -> None:
        """Make it anew over all ranks of the default group of now, after close(). Collective.

        So optimizers and others that have this object go on with ranks that have changed.
        """
        if self.is_member:
            self._thread.join()  # close() has ended its groups, so it waits for nothing
        self._open(None, settings or Settings())

    def _open(self, ranks: Sequence[int] | None, settings: Settings) -> None:
        control = distributed.new_group(ranks)
        data = distributed.new_group(ranks)
        self.is_member = control is not None and data is not None
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._asked = threading.Condition(self._lock)  # for the own thread: there is work
        self._ending = threading.Condition(self._lock)  # for the own thread, which collects
        self._changed = threading.Condition(self._lock)  # for whoever waits or drives
        self._turn = threading.Lock()  # held by who drives the rounds
        self._fresh: dict[str, Signature] = {}  # guarded by _lock; not yet told
        self._joins = False  # guarded by _lock; not yet told
        self._requests: dict[str, tuple[Request, Handle]] = {}  # guarded by _lock; not yet done
        self._join_handle: Handle | None = None  # guarded by _lock
        self._failure: CommError | None = None  # guarded by _lock
        self._numbers = 0  # guarded by _lock; of names since the last join
        self._joins_ended = 0  # guarded by _lock
        self._waiters = 0  # guarded by _lock; threads in wait() that do not drive
        self._closed = False  # guarded by _lock
        self._round_began = 0.0  # 0: none is in progress
        self._last_round = time.monotonic()
        self._pause_s = _SHORTEST_PAUSE_S
        self.last_joined = -1
        if control is None or data is None:
            return
        self.group = data
        self._control, self._data = control, data
        backend: Any = _C.ProcessGroupFarandole.of(control)
        backend.set_timeout(_FOR_EVER)  # a rank may be late; a dead one is found at once
        self.rank = control.rank()
        self.world_size = control.size()
        self._settings = settings
        self._agreement = Agreement(
            self.rank, self.world_size, Exchange(control), settings.capacity
        )
        self._execution = Execution(data, settings.fusion_bytes)
        self.shares_host = self._execution.shares_memory
        """Whether all ranks are on one host."""
        self._timeline: Timeline | None = None
        self._times: dict[str, float] | None = None  # guarded by _lock; of _fresh, for a timeline
        self._stalls = StallWatch(self._agreement, self.rank, settings)
        self._thread = start_thread("farandole-named-collectives", "named collectives", self._run)

    @property
    def stays_alone(self) -> bool:
        """Whether there is one rank, and an elastic launcher brings no others later."""
        return self.world_size == 1 and not elastic_meeting.is_elastic()

    def submit(self, name: str, request: Request, will_wait: bool = False) -> Handle:
        """Ask for an operation; it is done when all ranks have asked for that name.

        Args:
            name: Of which no other operation is in progress on this rank.
            request: Its tensors must be left alone until it is done.
            will_wait: Whether the caller calls wait() at once, or wake(): until then nobody is
                told, unless something else is.

        Raises:
            InvalidArgument: the name is in use, or the rank is no member.
            NotSupported: an "adasum" of ranks that are no power of two, or of integers.
            CommError: something failed before; then all operations do.
        """
        self._check_place(name)
        if request.op == "adasum":
            self._check_adasum(name, request)
        handle = Handle(name)
        signature = request.signature()
        request.note_stream()
        with self._lock:
            self._check_open()
            if name in self._requests:
                raise InvalidArgument(
                    sentences(
                        "named-twice",
                        f"'{name}' was asked for while an operation of that name is in progress.",
                        "operations of the ranks are matched by their names.",
                        "wait for the first one, or give the second one another name; delete an "
                        "optimizer in whose place another one has the parameters.",
                    )
                )
            self._fresh[name] = signature
            if self._times is not None:
                self._times[name] = time.monotonic()
            self._requests[name] = (request, handle)
            self._wake(will_wait)
        return handle

    def wake(self) -> None:
        """Let the own thread run what was asked for and is not yet waited for."""
        with self._lock:
            self._asked.notify()

    @property
    def shares_memory(self) -> bool:
        """Whether requests may ask for memory that ranks share; the same on all ranks."""
        return self._execution.shares_memory

    def new_name(self) -> str:
        """For what has none: ranks that call in one order since the last join() get the same."""
        with self._lock:
            self._numbers += 1
            return f"unnamed.{self._joins_ended}.{self._numbers}"

    def join(self, device: int | None = None, will_wait: bool = True) -> Handle:
        """Take part with zeros in what the others ask for, until all ranks have joined.

        ``last_joined`` is the rank that joined last, once the handle is done.

        Args:
            device: The index of the accelerator that has zeros for the others' tensors on
                accelerators; None: the current one.
            will_wait: Whether the caller calls wait() at once.
        """
        self._check_place("join")
        if device is None and torch.accelerator.is_available():
            device = torch.accelerator.current_device_index()
        self._execution.zeros_index = device
        with self._lock:
            self._check_open()
            if self._join_handle is None:
                self._join_handle = Handle("join")
                self._joins = True
            handle = self._join_handle
            self._wake(will_wait)
        return handle

    def wait(self, handle: Handle) -> list[Tensor]:
        """Wait for an operation; its result.

        Raises:
            MismatchError: the ranks' requests of that name do not fit together.
            CommError: a rank was lost, or has ended.
        """
        while not handle.done:
            if self._turn.acquire(blocking=False):
                self._drive(handle)
                continue
            with self._changed:
                self._waiters += 1
                try:
                    if not handle.done:
                        self._changed.wait(1.0)
                finally:  # the user may interrupt the program
                    self._waiters -= 1
            if self._round_began:
                self._stalls.look_at_round(self._round_began)
        if handle.error is not None:
            raise handle.error
        return handle.result

    def record(self, timeline: Timeline | None, tells_times: bool) -> None:
        """Write what is done from now on to a timeline; None: no more. Local.

        Args:
            timeline: Of this rank; one rank is enough.
            tells_times: Whether this rank tells when its program asks, for timelines of any rank.
        """
        if not self.is_member:
            return
        with self._lock:
            self._times = dict.fromkeys(self._fresh, time.monotonic()) if tells_times else None
        self._timeline = timeline
        self._agreement.on_asked = None if timeline is None else self._note_asked
        before, options = self._execution, (self._data, self._settings.fusion_bytes)
        self._execution = (
            Execution(*options) if timeline is None else RecordedExecution(*options, timeline)
        )
        self._execution.zeros_index = before.zeros_index

    def _note_asked(
        self, rank: int, name: str, signature: Signature | None, time_us: int | None
    ) -> None:
        if self._timeline is not None:
            seconds = time.monotonic() if time_us is None else self._last_round + time_us / 1e6
            self._timeline.asked(rank, name, signature, seconds)

    def close(self) -> None:
        """End it on this rank: other ranks' operations fail. Local."""
        if not self.is_member or os.getpid() != self._pid:
            return
        with self._lock:
            was_closed, self._closed = self._closed, True
            for condition in (self._asked, self._ending, self._changed):
                condition.notify_all()
        if was_closed:
            return
        for group in (self._control, self._data):
            if dist.is_initialized():
                distributed.destroy(group)
        if threading.current_thread() is not self._thread:
            self._thread.join(5.0)
        self._fail(_end_of(self.rank), others_know=True)

    def _wake(self, will_wait: bool) -> None:
        self._changed.notify_all()
        if not will_wait:
            self._asked.notify()

    def _drive(self, handle: Handle) -> None:
        """Rounds until an operation is done; the caller has the turn."""
        try:
            while not handle.done:
                self._advance()
        finally:
            self._turn.release()
            with self._lock:
                if self._has_work():
                    self._asked.notify()

    def _run(self) -> None:
        """What the own thread does: rounds that nobody waits for."""
        if self._settings.core is not None:
            os.sched_setaffinity(threading.get_native_id(), [self._settings.core])
        while True:
            with self._lock:
                if not self._has_work() and not self._is_over():
                    self._asked.wait(self._settings.heartbeat_s)
                if self._fresh and not self._waiters and not self._is_over():
                    self._ending.wait(self._settings.cycle_s)
                if self._is_over():
                    return
            if self._round_began:
                self._stalls.look_at_round(self._round_began)
            if not self._turn.acquire(timeout=self._settings.heartbeat_s):
                continue
            try:
                quiet_s = time.monotonic() - self._last_round
                if self._has_work() or quiet_s >= self._settings.heartbeat_s:
                    self._advance()
            finally:
                self._turn.release()

    def _advance(self) -> None:
        """One round, after a pause if only the other ranks' programs can go on."""
        with self._lock:
            if self._is_over():
                self._fail_all_locked()
                return
            has_news = bool(self._fresh) or self._joins
            if not has_news and self._agreement.waits and self._agreement.is_waited_for:
                self._changed.wait(self._pause_s)
                self._pause_s = min(2 * self._pause_s, _LONGEST_PAUSE_S)
            fresh, joins = list(self._fresh.items()), self._joins
            self._fresh, self._joins = {}, False
            times_us = self._take_times()
        try:
            if self._timeline is not None:
                self._timeline.cycle()
            self._round_began = time.monotonic()
            outcome = self._agreement.round(fresh, joins, self._stalls.gives_up(), times_us)
            self._round_began = 0.0
            self._last_round = time.monotonic()
            if outcome.is_news:
                self._pause_s = _SHORTEST_PAUSE_S
            self._execute(outcome)
            if outcome.gives_up:
                self._fail(self._stalls.error(), others_know=True)
            else:
                self._stalls.look()
        except BaseException as error:  # whatever it is, the other ranks must not wait for this one
            self._round_began = 0.0
            self._fail(error)
            if not isinstance(error, Exception):  # the user interrupts the program
                raise

    def _take_times(self) -> dict[str, int]:
        """Of what is told in the next round."""
        if not self._times:
            return {}
        times, self._times = self._times, {}
        return {name: int((at - self._last_round) * 1e6) for name, at in times.items()}

    def _execute(self, outcome: Outcome) -> None:
        work: list[tuple[Decision, Request | None, Handle | None]] = []
        with self._lock:
            for decision in outcome.decisions:
                own, handle = self._requests.get(decision.name, (None, None))
                work.append((decision, own, handle))
        runnable = [each for each in work if not each[0].conflict]
        timeline = self._timeline
        if timeline is not None:
            timeline.heard()
            for decision, _, _ in work:
                timeline.decided(decision)
            if outcome.last_joined is not None:
                timeline.end_negotiation("join")
        if runnable:
            self._execution.run(runnable)
        if timeline is not None:
            for decision, _, handle in runnable:
                timeline.done(decision.name, [] if handle is None else handle.result)
        with self._lock:
            for decision, _, handle in work:
                self._requests.pop(decision.name, None)
                if handle is not None:
                    handle.complete(_conflict(decision) if decision.conflict else None)
            if outcome.last_joined is not None and self._join_handle is not None:
                self.last_joined = outcome.last_joined
                self._joins_ended, self._numbers = self._joins_ended + 1, 0
                self._join_handle.complete()
                self._join_handle = None
            if work or outcome.last_joined is not None:
                self._changed.notify_all()

    def _has_work(self) -> bool:
        return bool(self._fresh) or self._joins or self._agreement.waits

    def _is_over(self) -> bool:
        return self._closed or self._failure is not None

    def _fail(self, error: BaseException, others_know: bool = False) -> None:
        """All operations end with ``error``, here and, as the groups end, on the other ranks."""
        with self._lock:
            if self._failure is None:
                self._failure = _end_of(self.rank) if self._closed else _between_ranks(error)
            tells_others = not self._closed and not others_know
            self._fail_all_locked()
        if tells_others:
            for group in (self._control, self._data):
                with contextlib.suppress(Error):  # close() may have ended it meanwhile
                    _C.abort(group)

    def _fail_all_locked(self) -> None:
        for _, handle in self._requests.values():
            handle.complete(self._failure or _end_of(self.rank))
        if self._join_handle is not None:
            self._join_handle.complete(self._failure or _end_of(self.rank))
            self._join_handle = None
        self._requests.clear()
        self._fresh.clear()
        self._changed.notify_all()

    def _check_open(self) -> None:
        if self._closed:
            raise _end_of(self.rank)
        if self._failure is not None:
            raise self._failure

    def _check_place(self, name: str) -> None:
        if not self.is_member:
            raise InvalidArgument(
                sentences(
                    "named-no-member",
                    f"'{name}' was asked for on a rank that is not in the group.",
                    "its ranks alone take part in its operations.",
                    "call it on these ranks only.",
                )
            )
        if os.getpid() != self._pid:
            raise InvalidArgument(
                sentences(
                    "named-forked",
                    f"'{name}' was asked for in a forked child.",
                    "the thread that the ranks agree by is in the parent.",
                    "call it in the parent, or spawn the child instead of forking it.",
                )
            )

    def _check_adasum(self, name: str, request: Request) -> None:
        reals = all(tensor.is_floating_point() for tensor in request.inputs)
        if request.operation != "all_reduce" or not is_possible(self.world_size) or not reals:
            raise NotSupported(
                sentences(
                    "named-adasum",
                    f"'{name}' asks for an adasum of {self.world_size} ranks.",
                    "it is an all_reduce of floating-point tensors, of 2, 4, 8, ... ranks that "
                    "form pairs.",
                    "use such a number of ranks, or op 'average'.",
                )
            )


def _conflict(decision: Decision) -> MismatchError:
    error = MismatchError(
        sentences(
            "named-conflict",
            f"the ranks' requests for '{decision.name}' do not fit together.",
            f"{decision.conflict}.",
            "let all ranks ask for the same under one name.",
        )
    )
    error.collective = decision.signature.operation
    return error


def _between_ranks(error: BaseException) -> CommError:
    if isinstance(error, CommError):
        return error
    failed = CommError(
        sentences(
            "named-failed",
            f"the named collectives have ended: {type(error).__name__}: {error}",
            "an operation that the ranks had agreed on failed on this rank, so the others cannot "
            "end it.",
            "see the cause of this error.",
        )
    )
    failed.__cause__ = error
    return failed


def _end_of(rank: int) -> CommError:
    return CommError(
        sentences(
            "named-closed",
            f"the named collectives of rank {rank} have been shut down.",
            "close() or shutdown() was called, here or on another rank.",
            "wait for all operations before, or make them anew.",
        )
    )
