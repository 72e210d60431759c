# SPDX-License-Identifier: Apache-2.0
"""Execution, with the steps of each operation in a timeline."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch.distributed as dist

from farandole.named import request
from farandole.named.agreement import Decision
from farandole.named.execution import Execution, Part
from farandole.named.handle import Handle
from farandole.named.request import Request
from farandole.named.timeline import COPY, WAIT, Timeline

_CALLS = {
    request.ALL_GATHER: "FARANDOLE_ALLGATHER",
    request.BROADCAST: "FARANDOLE_BCAST",
    request.ALL_TO_ALL: "FARANDOLE_ALLTOALL",
    request.REDUCE_SCATTER: "FARANDOLE_REDUCESCATTER",
}


class RecordedExecution(Execution):
    """As Execution."""

    def __init__(self, group: dist.ProcessGroup, fusion_bytes: int, timeline: Timeline) -> None:
        super().__init__(group, fusion_bytes)
        self._timeline = timeline

    def _move(self, decision: Decision, own: Request, handle: Handle) -> None:
        self._timeline.activity(decision.name, _CALLS[own.operation])
        super()._move(decision, own, handle)

    def _parts(
        self, decision: Decision, own: Request | None, handle: Handle | None
    ) -> Iterator[Part]:
        if own is not None and not own.in_place:
            self._timeline.activity(decision.name, COPY)
        for part in super()._parts(decision, own, handle):
            self._timeline.activity(decision.name, WAIT)
            yield part

    def _reduce(self, parts: Sequence[Part]) -> None:
        call = "FARANDOLE_ADASUM_ALLREDUCE" if parts[0].op == "adasum" else "FARANDOLE_ALLREDUCE"
        for handle in dict.fromkeys(part.handle for part in parts):
            if handle is not None:
                self._timeline.activity(handle.name, call)
        super()._reduce(parts)
