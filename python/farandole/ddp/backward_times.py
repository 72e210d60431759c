# SPDX-License-Identifier: Apache-2.0
"""How the last synchronized backward went, in milliseconds."""

from __future__ import annotations

from dataclasses import dataclass

from farandole import _C


@dataclass(frozen=True)
class BucketTimes:
    """One bucket on this rank; times in ms since backward began here."""

    bytes: int
    parameters: int
    ready_ms: float
    """Its last gradient had come, and it was launched; 0 if it was skipped."""
    complete_ms: float | None
    """All ranks had launched it; None where that is not known."""
    finish_ms: float
    """This rank's part of the reduction was done; 0 if it was skipped."""


@dataclass(frozen=True)
class BackwardTimes:
    """How the last synchronized backward went on this rank."""

    backward: int
    """Which one it was; 0 before the first."""
    compute_ms: float
    """Until the last gradient had come, hidden communication included."""
    exposed_ms: float
    """From then until all were averages: communication that was not hidden, and waiting."""
    latest_rank: int
    """Which rank's last gradient came last; -1 before the first backward."""
    rank_compute_ms: tuple[float, ...]
    """``compute_ms`` of each rank."""
    copied_bytes: int
    """Of gradients that were copied into their buckets, instead of being computed there."""
    buckets: tuple[BucketTimes, ...]
    """In the order in which they are launched."""
    plans: int = 0
    """Of buckets, made so far; a backward that made one did not overlap."""

    def __str__(self) -> str:
        if self.backward == 0:
            return "no synchronized backward yet"
        lines = [
            f"backward #{self.backward}: compute {self.compute_ms:.2f} ms, exposed "
            f"communication {self.exposed_ms:.2f} ms, latest rank {self.latest_rank}"
        ]
        for number, bucket in enumerate(self.buckets):
            complete = "" if bucket.complete_ms is None else f" complete {bucket.complete_ms:.2f}"
            lines.append(
                f"  bucket {number}: {bucket.bytes / 2**20:.2f} MiB of {bucket.parameters} "
                f"gradients, ready {bucket.ready_ms:.2f}{complete} finish {bucket.finish_ms:.2f}"
            )
        return "\n".join(lines)


def backward_times(stats: _C.BackwardStats | None) -> BackwardTimes:
    """Nanoseconds of a clock as milliseconds since backward began; None: there was none."""
    if stats is None:
        return BackwardTimes(0, 0.0, 0.0, -1, (), 0, ())

    begin_ns = stats.begin_ns

    def since_begin(ns: int) -> float:
        return (ns - begin_ns) / 1e6 if ns else 0.0

    return BackwardTimes(
        backward=stats.backward,
        compute_ms=since_begin(stats.end_ns),
        exposed_ms=(stats.finish_ns - stats.end_ns) / 1e6,
        latest_rank=stats.latest_rank,
        rank_compute_ms=tuple((rank.end_ns - rank.begin_ns) / 1e6 for rank in stats.ranks),
        copied_bytes=stats.copied_bytes,
        buckets=tuple(
            BucketTimes(
                bytes=bucket.bytes,
                parameters=bucket.parameters,
                ready_ms=since_begin(bucket.ready_ns),
                complete_ms=since_begin(bucket.complete_ns) if bucket.complete_ns else None,
                finish_ms=since_begin(bucket.finish_ns),
            )
            for bucket in stats.buckets
        ),
        plans=stats.plans,
    )
