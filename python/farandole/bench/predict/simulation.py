# SPDX-License-Identifier: Apache-2.0
"""One step of all ranks: computation, and collectives that overlap with it."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from farandole.bench.predict.buckets import Bucket, buckets_of, caps_of, default_caps
from farandole.bench.predict.collectives import Cost, Operation, cost_of
from farandole.bench.predict.layout import Layout
from farandole.bench.predict.links import Algorithm, Links
from farandole.bench.predict.recorded_step import RecordedStep

REPORT_BYTES = 256  # what ranks tell each other at the end of backward, about
MOST_TAKEN = 0.95  # of the cores, by communication


class Zero(Enum):
    """How the optimizer's state is divided; docs/zero.md."""

    NONE = "none"
    FULL = "full"
    """ZeroRedundancyOptimizer, gradients="full"."""
    SHARD = "shard"
    """gradients="shard"."""
    HOST = "host"
    """gradients="full", shard_over="host"."""


@dataclass(frozen=True)
class Options:
    """How the training is set up."""

    bucket_cap_mb: float | None = None
    wire_dtype: str | None = None
    zero: Zero = Zero.NONE
    overlap_with_ddp: bool = False
    """New parameters arrive while the next forward runs."""


@dataclass(frozen=True)
class StepTimes:
    """In seconds."""

    step_s: float
    exposed_s: float
    """Communication that neither backward nor the next forward hides, and waiting for it."""


@dataclass
class Running:
    """A collective that is under way or waits for those before it."""

    left_s: float
    """As long as it would still take on idle cores."""
    taken: float
    """The part of the cores that computation lacks meanwhile."""


@dataclass
class Backward:
    """Computation and collectives that slow each other down.

    Collectives run one after the other. While one runs, computation has ``1 - taken`` of its pace,
    and while ranks compute, collectives take ``busy_factor`` times as long.
    """

    links: Links
    now_s: float
    done_s: float = 0.0
    """Seconds of computation, as it would take alone."""
    queue: list[Running] = field(default_factory=list)

    def compute(self, until_s: float) -> None:
        """Goes on until so much is computed."""
        factor = self.links.busy_factor
        while self.queue and self.done_s < until_s:
            running = self.queue[0]
            needed = (until_s - self.done_s) / (1 - running.taken)
            possible = running.left_s * factor
            if needed < possible:
                running.left_s -= needed / factor
                self.now_s, self.done_s = self.now_s + needed, until_s
                return
            self.queue.pop(0)
            self.now_s += possible
            self.done_s += possible * (1 - running.taken)
        self.now_s += max(0.0, until_s - self.done_s)
        self.done_s = max(until_s, self.done_s)

    def launch(self, cost: Cost) -> None:
        """Behind those that were launched."""
        cores, taken = self.links.cores_per_host, 0.0
        if cores is not None and cost.seconds > 0:
            taken = min(MOST_TAKEN, cost.cpu_s / cost.seconds / cores)
        self.queue.append(Running(cost.seconds, taken))

    def drain(self) -> float:
        """Waits for all collectives when nothing is left to compute; how long that takes."""
        waited = sum(running.left_s for running in self.queue)
        self.now_s += waited
        self.queue = []
        return waited


def simulate(
    step: RecordedStep,
    layout: Layout,
    links: Links,
    options: Options | None = None,
    *,
    slowest: float = 1.0,
) -> StepTimes:
    """``slowest``: how much longer the slowest rank computes than the recorded one.

    Gradients of a bucket are averaged when all ranks have them, that is the slowest one. A bucket's
    collective begins when those before it have ended. Where all ranks share memory, nothing is cast
    for the wire, gradients="shard" averages in the optimizer's step, and new parameters are there
    at its end.
    """
    options = options or Options()
    shared = layout.hosts == 1 and links.algorithm is Algorithm.STRIPES
    pace = slowest / 1e3  # milliseconds of the record to seconds
    broadcast = cost_of(Operation.BROADCAST, step.buffer_bytes, layout, links)
    communication = broadcast.seconds if step.buffer_bytes else 0.0
    backward = Backward(links, now_s=communication)
    operation = Operation.REDUCE_SCATTER if options.zero is Zero.SHARD else Operation.ALL_REDUCE
    for bucket in _buckets(step, options, shared=shared):
        backward.compute(bucket.ready_ms * pace)
        backward.launch(cost_of(operation, bucket.bytes, layout, links))
    backward.compute(step.backward_end_ms * pace)
    report = cost_of(Operation.ALL_GATHER, REPORT_BYTES, layout, links).seconds
    exposed = backward.drain() + report
    rest = step.other_ms * pace + step.optimizer_ms * pace / _shards(layout, options.zero)
    gathered = _gathering_s(step, layout, links, options.zero)
    if options.overlap_with_ddp and not shared:
        gathered = max(0.0, gathered - step.forward_ms * pace)
    total = backward.now_s + report + rest + gathered
    return StepTimes(total, communication + exposed + gathered)


def _buckets(step: RecordedStep, options: Options, *, shared: bool) -> list[Bucket]:
    caps = default_caps(shared=shared)
    if options.bucket_cap_mb is not None:
        caps = caps_of(options.bucket_cap_mb, shared=shared)
    buckets = buckets_of(step.gradients, caps, None if shared else options.wire_dtype)
    if shared and options.zero is Zero.SHARD:
        return [replace(bucket, ready_ms=step.backward_end_ms) for bucket in buckets]
    return buckets


def _shards(layout: Layout, zero: Zero) -> int:
    """Into which the optimizer's work is divided."""
    return {Zero.NONE: 1, Zero.HOST: layout.ranks_per_host}.get(zero, layout.ranks)


def _gathering_s(step: RecordedStep, layout: Layout, links: Links, zero: Zero) -> float:
    """New parameters on their way to the other ranks; as many bytes as gradients have."""
    if zero is Zero.NONE:
        return 0.0
    among = Layout(1, layout.ranks_per_host) if zero is Zero.HOST else layout
    return cost_of(Operation.ALL_GATHER, step.gradient_bytes, among, links).seconds
