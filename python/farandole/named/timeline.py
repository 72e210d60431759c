# SPDX-License-Identifier: Apache-2.0
"""What NamedCollectives do, as Horovod's timeline: a Chrome trace with a track for each name.

A track has NEGOTIATE_<OPERATION> from the first rank's request to the decision, with a tick for
each rank that asked; then <OPERATION>, and within it, by this rank's clock:

    QUEUE                        until it is its turn
    MEMCPY_IN_FUSION_BUFFER      the input is copied to where the result will be
    WAIT_FOR_OTHER_TENSOR_DATA   it shares a call with tensors that are prepared meanwhile
    FARANDOLE_<OPERATION>        the call; of a tensor on an accelerator, until it is launched

`farandole.profiler` records the same calls on all ranks, with what each rank waited for.
"""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from farandole.errors import SystemError, sentences
from farandole.logs import LOGGER
from farandole.named import request
from farandole.named.agreement import Decision
from farandole.named.request import Signature
from farandole.start_thread import start_thread

_PAUSE_S = 0.1
_END = b"\n]\n"
_HOROVODS = {
    "all_reduce": "ALLREDUCE",
    "all_gather": "ALLGATHER",
    "broadcast": "BROADCAST",
    "all_to_all": "ALLTOALL",
    "reduce_scatter": "REDUCESCATTER",
}
"""Operations that Horovod spells otherwise."""
QUEUE = "QUEUE"
COPY = "MEMCPY_IN_FUSION_BUFFER"
WAIT = "WAIT_FOR_OTHER_TENSOR_DATA"


def _kind_of(signature: Signature) -> str:
    """Horovod's name of an operation."""
    kind = "adasum" if signature.op == "adasum" else signature.operation
    return _HOROVODS.get(kind, kind.upper())


class Timeline:
    """A file that is valid JSON at all times; a killed process loses its last tenth of a second.

    Threads: one at a time for events; any for close(). A thread of its own writes.
    """

    def __init__(self, path: str | os.PathLike[str], mark_cycles: bool = False) -> None:
        """Make the file, or empty it.

        Raises:
            SystemError: it cannot be written.
        """
        self.path = Path(path)
        self.marks_cycles = mark_cycles
        self._began_ns = time.monotonic_ns()
        self._tracks: dict[str, int] = {}  # the number of each name
        self._asked: dict[str, list[tuple[int, int, str]]] = {}  # per name: time, rank, operation
        self._negotiated: dict[str, int] = {}  # per name that is negotiated: its last event
        self._state: dict[str, str] = {}  # per name that is run: "operation", "activity" within it
        self._lock = threading.Lock()
        self._events: list[dict[str, object]] = []  # guarded by _lock; not yet written
        self._ends = threading.Event()
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666)
            self._place = os.pwrite(self._file, b"[\n" + self._head() + _END, 0) - len(_END)
        except OSError as error:
            raise SystemError(
                sentences(
                    "named-timeline",
                    f"the timeline '{self.path}' cannot be written.",
                    f"{error.strerror}.",
                    "name a file in a folder that exists and has space.",
                )
            ) from error
        try:
            self._writer = start_thread("farandole-timeline", "the timeline", self._run)
        except SystemError:
            os.close(self._file)
            raise

    def is_at(self, path: str | os.PathLike[str]) -> bool:
        """Whether it is that file."""
        return self.path.absolute() == Path(path).absolute()

    def cycle(self) -> None:
        """A round begins."""
        if self.marks_cycles:
            self._add({"ph": "i", "name": "CYCLE_START", "ts": self._now_us(), "s": "g"})

    def asked(self, rank: int, name: str, signature: Signature | None, seconds: float) -> None:
        """A rank waits for a name since then (monotonic); without a signature it has joined."""
        kind = "JOIN" if signature is None else _kind_of(signature)
        ts = max(0, min(int(seconds * 1e6) - self._began_ns // 1000, self._now_us()))
        self._asked.setdefault(name, []).append((ts, rank, kind))

    def heard(self) -> None:
        """All ranks have told what they wait for."""
        for name, asked in self._asked.items():
            for ts, rank, kind in sorted(asked):
                if name not in self._negotiated:
                    self._negotiated[name] = ts
                    self._event(name, "B", name=f"NEGOTIATE_{kind}", ts=ts)
                # Who told it in a later round may have asked a little earlier.
                self._negotiated[name] = max(ts, self._negotiated[name])
                self._event(name, "X", name=str(rank), dur=0, ts=self._negotiated[name])
        self._asked.clear()

    def decided(self, decision: Decision) -> None:
        """All ranks wait for it; it runs next, or is an error."""
        name = decision.name
        self.end_negotiation(name)
        if not decision.conflict:
            self._state[name] = "operation"
            self._event(name, "B", name=_kind_of(decision.signature))
            if decision.signature.operation != request.BARRIER:
                self.activity(name, QUEUE)

    def end_negotiation(self, name: str) -> None:
        """The ranks agree."""
        if self._negotiated.pop(name, None) is not None:
            self._event(name, "E")

    def activity(self, name: str, what: str) -> None:
        """What is done for it from now on."""
        state = self._state.get(name)
        if state == "activity":
            self._event(name, "E")
        if state is not None:
            self._state[name] = "activity"
            self._event(name, "B", name=what)

    def done(self, name: str, results: Sequence[Tensor]) -> None:
        """Its results are there."""
        state = self._state.pop(name, None)
        if state == "activity":
            self._event(name, "E")
        if state is not None:
            dtypes = [str(each.dtype).removeprefix("torch.") for each in results]
            shapes = [str(list(each.shape)) for each in results]
            args = {"dtype": ", ".join(dict.fromkeys(dtypes)), "shape": ", ".join(shapes)}
            self._event(name, "E", args=args if results else {})

    def close(self) -> None:
        """Write the rest. Later events are dropped."""
        self._ends.set()
        self._writer.join()

    def _head(self) -> bytes:
        start_us = time.time_ns() // 1000
        args = {"start_time_since_epoch_in_micros": start_us}
        return b",\n".join(
            json.dumps(event).encode()
            for event in (
                {"name": "process_name", "ph": "M", "pid": 0, "args": args},
                {"name": "process_sort_index", "ph": "M", "pid": 0, "args": {"sort_index": 0}},
            )
        )

    def _now_us(self) -> int:
        return (time.monotonic_ns() - self._began_ns) // 1000

    def _event(self, track: str, phase: str, **more: object) -> None:
        number = self._tracks.get(track)
        if number is None:
            number = self._tracks[track] = len(self._tracks) + 1
            operation, _, rest = track.partition(".")
            known = rest and operation in _HOROVODS
            args = {"name": f"{_HOROVODS[operation].lower()}.{rest}" if known else track}
            self._add({"name": "process_name", "ph": "M", "pid": number, "args": args})
            order = {"sort_index": number}
            self._add({"name": "process_sort_index", "ph": "M", "pid": number, "args": order})
        self._add({"ph": phase, "ts": self._now_us(), "pid": number, **more})

    def _add(self, event: dict[str, object]) -> None:
        with self._lock:
            if not self._ends.is_set():
                self._events.append(event)

    def _run(self) -> None:
        try:
            while not self._ends.wait(_PAUSE_S):
                self._write()
            self._write()
        except OSError as error:
            self._ends.set()
            LOGGER.warning("the timeline '%s' ends here: %s.", self.path, error.strerror)
        finally:
            os.close(self._file)

    def _write(self) -> None:
        """Put what is new in the place of the array's end, and a new end behind it."""
        with self._lock:
            events, self._events = self._events, []
        if not events:
            return
        data = b"".join(b",\n" + json.dumps(event).encode() for event in events)
        left = memoryview(data + _END)
        place = self._place
        while left:
            written = os.pwrite(self._file, left, place)
            left, place = left[written:], place + written
        self._place += len(data)
