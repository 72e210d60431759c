# SPDX-License-Identifier: Apache-2.0
"""Measures the link at one rate, then predicts and measures the steps of each model."""

import os
import statistics
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

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

from benchmarks.harness.ranks import Answer, Ranks
from benchmarks.harness.results import Row
from benchmarks.harness.rounds import interleaved, median_and_p95, say
from benchmarks.hosts.emulated import EmulatedHosts
from benchmarks.hosts.measure import gbit

LINK_BYTES = (1 << 20, 8 << 20)
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
    pairs, cpu_s, moved = [], 0.0, 0.0
    for size in LINK_BYTES:
        times = max(3, min(20, round(0.1 * gbit(plan.rate) * 8e9 / size / 8)))
        answers = ranks.ask(f"link {size} {times}")
        seconds = [max(each) for each in zip(*(a["seconds"] for a in answers), strict=True)]
        pairs.append((float(size), statistics.median(seconds)))
        cpu_s += sum(answer["cpu_s"] for answer in answers) / count
        moved += len(seconds) * 2 * 2 * (count - 1) / count * size
    layout = Layout(count, 1)
    times_of_sizes = Measured(Operation.ALL_REDUCE, layout, (*pairs,), cpu_s / moved)
    link = fitted(times_of_sizes, Algorithm.STRIPES)
    say(f"{plan.rate}: {link.latency_s * 1e6:.0f} us, {link.bytes_per_s / 1e6:.2f} MB/s, "
        f"{link.cpu_s_per_byte * 1e9:.2f} CPU s a GB")  # fmt: skip
    return link


def measured_steps(plan: Plan, ranks: Ranks, count: int, link: Link) -> list[Row]:
    """Steps without communication and those of DDP take turns, and so do models."""
    recorded: dict[str, list[RecordedStep]] = {model: [] for model in plan.models}
    steps_ms: dict[str, list[float]] = {model: [] for model in plan.models}
    for turns in interleaved(plan.models, plan.rounds):
        for model in turns:
            answers = ranks.ask(f"steps {model} {plan.size} {plan.steps}")
            recorded[model].append(combined([step_of(each["recorded"]) for each in answers]))
            steps_ms[model] += slowest(answers)
    cores = len(os.sched_getaffinity(0)) / count
    links = Links(UNUSED, link, Algorithm.STRIPES, cores_per_host=cores)
    rows = []
    for model in plan.models:
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
