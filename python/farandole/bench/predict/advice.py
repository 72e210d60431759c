# SPDX-License-Identifier: Apache-2.0
"""What would help most: the same steps with one thing changed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from farandole.bench.predict.links import Algorithm
from farandole.bench.predict.prediction import Conditions, Draw, Prediction, predict
from farandole.bench.predict.simulation import Zero

CAPS_MB = (1, 5, 10, 50, 100)
LIMITLESS = 1e6  # times the bandwidth


@dataclass(frozen=True)
class Change:
    """One thing that is different."""

    what: str
    conditions: Conditions
    kind: str
    """Of changes of one kind the best counts: "buckets", "wire", "zero", "hosts". Of "bound" there
    is nothing to set; it shows where the time is lost."""

    @property
    def is_bound(self) -> bool:
        """Nothing to set."""
        return self.kind == "bound"


@dataclass(frozen=True)
class Effect:
    """What a change makes of the step."""

    change: Change
    prediction: Prediction
    gain: float
    """Part of the step's time that it saves; below 0 it costs."""


def effects(conditions: Conditions, ranks: int, draws: Sequence[Draw]) -> list[Effect]:
    """Of all changes that apply there, the best first; bounds last."""
    base = predict(conditions, ranks, draws)
    found = []
    for change in changes(conditions, ranks):
        prediction = predict(change.conditions, ranks, draws)
        found.append(Effect(change, prediction, 1 - prediction.step_ms / base.step_ms))
    return sorted(found, key=lambda effect: (effect.change.is_bound, -effect.gain))


def best_of_each_kind(found: Sequence[Effect]) -> list[Effect]:
    """Of changes that can be made, the best of each kind, the best first."""
    best: dict[str, Effect] = {}
    for effect in found:
        if not effect.change.is_bound:
            best.setdefault(effect.change.kind, effect)
    return [*best.values()]


def changes(conditions: Conditions, ranks: int) -> Iterator[Change]:
    """Those that differ from what is."""
    yield from _of_buckets(conditions)
    yield from _of_wire(conditions)
    yield from _of_zero(conditions)
    yield from _of_hierarchy(conditions, ranks)
    if conditions.jitter:
        yield Change("ranks without jitter", replace(conditions, jitter=0.0), "bound")
    yield Change("links without limits", _limitless(conditions), "bound")


def _of_buckets(conditions: Conditions) -> Iterator[Change]:
    for cap in CAPS_MB:
        if cap != conditions.options.bucket_cap_mb:
            options = replace(conditions.options, bucket_cap_mb=cap)
            yield Change(f"bucket_cap_mb={cap}", replace(conditions, options=options), "buckets")


def _of_wire(conditions: Conditions) -> Iterator[Change]:
    wide = any(each.dtype in ("float32", "float64") for each in conditions.step.gradients)
    if wide and conditions.options.wire_dtype is None:
        options = replace(conditions.options, wire_dtype="bfloat16")
        yield Change("wire_dtype=torch.bfloat16", replace(conditions, options=options), "wire")


def _of_zero(conditions: Conditions) -> Iterator[Change]:
    names = {
        Zero.NONE: "without ZeroRedundancyOptimizer",
        Zero.FULL: 'ZeRO, gradients="full"',
        Zero.SHARD: 'ZeRO, gradients="shard"',
        Zero.HOST: 'ZeRO, shard_over="host"',
    }
    for zero, name in names.items():
        on_cpu = conditions.step.device == "cpu"  # elsewhere it is NotSupported
        if zero is Zero.HOST and (conditions.ranks_per_host == 1 or not on_cpu):
            continue
        if zero is not conditions.options.zero:
            options = replace(conditions.options, zero=zero, overlap_with_ddp=False)
            yield Change(name, replace(conditions, options=options), "zero")
        if zero is Zero.SHARD and not conditions.options.overlap_with_ddp:
            options = replace(conditions.options, zero=zero, overlap_with_ddp=True)
            what = f"{name}, overlap_with_ddp=True"
            yield Change(what, replace(conditions, options=options), "zero")


def _of_hierarchy(conditions: Conditions, ranks: int) -> Iterator[Change]:
    local = conditions.ranks_per_host
    if local < ranks and ranks % (2 * local) == 0:
        yield Change(
            f"{2 * local} ranks on each host instead of {local}",
            replace(conditions, ranks_per_host=2 * local),
            "hosts",
        )
    given = conditions.links.algorithm
    other = {Algorithm.RING: Algorithm.TREE, Algorithm.TREE: Algorithm.RING}.get(given)
    if other is not None and local < ranks:
        links = replace(conditions.links, algorithm=other)
        yield Change(f"NCCL_ALGO={other.value}", replace(conditions, links=links), "hosts")


def _limitless(conditions: Conditions) -> Conditions:
    """No latency either."""
    links = conditions.links
    within, between = (
        replace(link.scaled(LIMITLESS), latency_s=0.0, message_s=0.0, cpu_s_per_byte=0.0)
        for link in (links.within, links.between)
    )
    return replace(
        conditions,
        links=replace(links, within=within, between=between, launch_s=0.0, busy_factor=1.0),
    )
