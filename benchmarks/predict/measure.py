# SPDX-License-Identifier: Apache-2.0
"""Measures the link at one rate, then predicts and measures the steps of each model."""

import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

from farandole.bench.predict import (
    Algorithm,
    Conditions,
    Gradient,
    Link,
    Links,
    Options,
    RecordedStep,
    combined,
    draws_of,
    joined,
    predict,
)
from farandole.bench.predict.collectives import Operation
from farandole.bench.predict.fit import Measured, fitted
from farandole.bench.predict.layout import Layout
from farandole.bench.rounds import interleaved

from benchmarks.harness.ranks import Answer, Ranks
from benchmarks.harness.results import Row
from benchmarks.harness.rounds import median_and_p95, say
from benchmarks.hosts.emulated import EmulatedHosts
from benchmarks.hosts.measure import gbit

LINK_BYTES = (1 << 20, 8 << 20)
CONTENTION_ROUNDS = 3
UNUSED = Link(0.0, 1e12, source="one rank on each host")


@dataclass(frozen=True)
class Plan:
    """One rate of the network."""

    rate: str  # as tc writes it
    hosts: Sequence[int]  # each with one rank; the link is measured between two
    models: Sequence[str]
    size: str  # "full" or "quick"
    rounds: int
    steps: int  # a round


def measure(plan: Plan) -> Iterator[list[Row]]:
    """A table for each number of hosts."""
    link: Link | None = None
    for count in plan.hosts:
        with running(plan.rate, count) as ranks:
            if link is None:
                link = measured_link(plan, ranks, count)
            yield measured_steps(plan, ranks, count, link)


@contextmanager
def running(rate: str, count: int) -> Iterator[Ranks]:
    """One rank on each of so many hosts."""
    with EmulatedHosts(count, rate) as hosts:
        commands = hosts.commands(range(count), "predict.worker")
        with Ranks(f"{count} hosts, {rate}", count, commands) as ranks:
            yield ranks


def measured_link(plan: Plan, ranks: Ranks, count: int) -> Link:
    """From two sizes of all_reduce between idle hosts; no model has been seen by then."""
    pairs = []
    for size in LINK_BYTES:
        answers = ranks.ask(f"link {size} {times_of(plan, size)}")
        seconds = [max(each) for each in zip(*(a["seconds"] for a in answers), strict=True)]
        pairs.append((float(size), statistics.median(seconds)))
    measured = Measured(Operation.ALL_REDUCE, Layout(count, 1), (*pairs,))
    return fitted(measured, Algorithm.STRIPES)


def times_of(plan: Plan, size: int) -> int:
    """About a second."""
    return max(3, min(20, round(gbit(plan.rate) * 1e9 / 8 / size)))


@dataclass(frozen=True)
class Contention:
    """What collectives and computation of these hosts cost each other."""

    busy_factor: float
    cpu_s_per_byte: float


def measured_contention(plan: Plan, ranks: Ranks, count: int) -> Contention:
    """Medians of some rounds, without a model; hosts share cores, so their number matters."""
    size = LINK_BYTES[-1]
    times = times_of(plan, size)
    moved = 2 * 2 * (count - 1) / count * size * times  # sent and received
    factors, costs = [], []
    for _ in range(CONTENTION_ROUNDS):
        answers = ranks.ask(f"contention {size} {times}")
        idle_s, busy_s = (max(each[key] for each in answers) for key in ("idle_s", "busy_s"))
        factors.append(busy_s / idle_s)
        costs.append(statistics.fmean(each["cpu_s"] for each in answers) / moved)
    return Contention(max(1.0, statistics.median(factors)), statistics.median(costs))


def measured_steps(plan: Plan, ranks: Ranks, count: int, link: Link) -> list[Row]:
    """Steps without communication and those of DDP take turns, and so do models."""
    contention = measured_contention(plan, ranks, count)
    say(f"{count} hosts, {plan.rate}: {link.latency_s * 1e6:.0f} us, "
        f"{link.bytes_per_s / 1e6:.2f} MB/s, x {contention.busy_factor:.3f} while ranks compute, "
        f"{contention.cpu_s_per_byte * 1e9:.2f} CPU s a GB")  # fmt: skip
    recorded: dict[str, list[RecordedStep]] = {model: [] for model in plan.models}
    steps_ms: dict[str, list[float]] = {model: [] for model in plan.models}
    cores: dict[str, list[float]] = {model: [] for model in plan.models}
    for turns in interleaved(plan.models, plan.rounds):
        for model in turns:
            answers = ranks.ask(f"steps {model} {plan.size} {plan.steps}")
            recorded[model].append(combined([step_of(each["recorded"]) for each in answers]))
            steps_ms[model] += slowest(answers)
            cores[model] += [each["cores"] for each in answers]
    rows = []
    for model in plan.models:
        links = Links(
            UNUSED,
            replace(link, cpu_s_per_byte=contention.cpu_s_per_byte),
            Algorithm.STRIPES,
            cores_per_host=statistics.median(cores[model]),
            busy_factor=contention.busy_factor,
        )
        row = row_of(plan, count, links, joined(recorded[model]), steps_ms[model])
        rows.append({"model": model, **row})
        say(f"{count} hosts, {plan.rate}, {model}: predicted {row['predicted_ms']:.1f} ms, "
            f"measured {row['median_ms']:.1f} ms, {100 * row['error']:+.1f} %")  # fmt: skip
    return rows


def step_of(answer: Answer) -> RecordedStep:
    """What a rank has recorded."""
    gradients = tuple(Gradient(**each) for each in answer["gradients"])
    steps_ms = tuple(map(tuple, answer["steps_ms"]))
    return RecordedStep(**{**answer, "gradients": gradients, "steps_ms": steps_ms})


def slowest(answers: list[Answer]) -> list[float]:
    """Of each step; all ranks must have the same parameters."""
    if len({answer["checksum"] for answer in answers}) != 1:
        raise RuntimeError("the ranks' parameters differ")
    return [max(each) for each in zip(*(answer["steps_ms"] for answer in answers), strict=True)]


def row_of(plan: Plan, count: int, links: Links, step: RecordedStep, steps_ms: list[float]) -> Row:
    """See docs/benchmarks.md."""
    conditions = Conditions(step, links, 1, Options(), step.jitter())
    prediction = predict(conditions, count, draws_of(0))
    measured = median_and_p95(steps_ms)
    return {
        "rate": plan.rate,
        "hosts": count,
        "gradient_bytes": step.gradient_bytes,
        "link_us": round(links.between.latency_s * 1e6, 1),
        "link_mb_s": round(links.between.bytes_per_s / 1e6, 3),
        "busy_factor": round(links.busy_factor, 4),
        "cores_a_rank": round(links.cores_per_host or 0.0, 3),
        "cpu_s_a_gb": round(links.between.cpu_s_per_byte * 1e9, 4),
        "alone_ms": round(step.step_ms, 4),
        "jitter": round(conditions.jitter, 4),
        "predicted_ms": round(prediction.step_ms, 4),
        "predicted_interval_ms": [
            round(step.step_ms / each, 4) for each in (prediction.high, prediction.low)
        ],
        **measured,
        "steps": len(steps_ms),
        "error": round(prediction.step_ms / measured["median_ms"] - 1, 4),
        "verified": True,
    }
