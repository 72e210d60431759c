# SPDX-License-Identifier: Apache-2.0
"""Latency and bandwidth of a link from measured times of a collective: least squares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farandole.bench.predict.collectives import Operation, ways
from farandole.bench.predict.layout import Layout
from farandole.bench.predict.links import Algorithm, Link
from farandole.errors import InvalidArgument, sentences


@dataclass(frozen=True)
class Measured:
    """Times of one collective on one level: on one host, or on hosts with one rank each."""

    operation: Operation
    layout: Layout
    pairs: tuple[tuple[float, float], ...]
    """(bytes, seconds)"""
    cpu_s_per_byte: float = 0.0
    """CPU time of a host for each byte that it sends or receives."""
    message_s: float = 0.0


def fitted(measured: Measured, algorithm: Algorithm) -> Link:
    """The link with the least sum of squared relative errors.

    seconds_i = rounds_i * latency + bytes_i / bandwidth, where rounds and bytes are those of the
    algorithm. A latency below 0 becomes 0. ``spread`` is the largest relative error of a pair.

    Raises:
        InvalidArgument: the pairs do not tell latency from bandwidth.
    """
    if algorithm is Algorithm.NCCL:
        algorithm = Algorithm.RING  # what large sizes take
    rows = [_row(measured, algorithm, size, seconds) for size, seconds in measured.pairs]
    latency, per_byte = solve(rows)
    if latency < 0:
        latency, per_byte = 0.0, _ratio(rows)
    if per_byte <= 0 or len({size for size, _ in measured.pairs}) < 2:
        raise InvalidArgument(
            sentences(
                "predict-pairs",
                f"the times {[*measured.pairs]} are those of no link.",
                "latency and bandwidth need two sizes at least, and more bytes must take longer.",
                "measure a small and a large size on idle hosts.",
            )
        )
    errors = [abs(rounds * latency + moved * per_byte - 1) for rounds, moved in rows]
    return Link(
        latency_s=latency,
        bytes_per_s=1 / per_byte,
        spread=max(errors),
        message_s=measured.message_s,
        cpu_s_per_byte=measured.cpu_s_per_byte,
        source=f"fitted to {len(measured.pairs)} times of {measured.operation.value}",
    )


def _row(
    measured: Measured, algorithm: Algorithm, size: float, seconds: float
) -> tuple[float, float]:
    """Rounds and bytes of a pair, both divided by its seconds: the errors become relative."""
    if seconds <= 0 or size <= 0:
        raise InvalidArgument(
            sentences(
                "predict-pair",
                f"{size} bytes in {seconds} s are no measurement.",
                "both numbers of a pair are above 0.",
                "write pairs as [bytes, seconds], for example [1048576, 0.0087].",
            )
        )
    within, between = ways(measured.operation, size, measured.layout, algorithm)[0]
    traffic = between if measured.layout.hosts > 1 else within
    return traffic.rounds / seconds, traffic.bytes / seconds


def solve(rows: Sequence[tuple[float, float]]) -> tuple[float, float]:
    """(x, y) with the least sum of (a x + b y - 1)^2 over rows (a, b); (0, ratio) if singular."""
    aa = sum(a * a for a, _ in rows)
    ab = sum(a * b for a, b in rows)
    bb = sum(b * b for _, b in rows)
    a_sum, b_sum = sum(a for a, _ in rows), sum(b for _, b in rows)
    determinant = aa * bb - ab * ab
    if determinant <= 1e-12 * aa * bb:
        return 0.0, _ratio(rows)
    return (bb * a_sum - ab * b_sum) / determinant, (aa * b_sum - ab * a_sum) / determinant


def _ratio(rows: Sequence[tuple[float, float]]) -> float:
    """The same for y alone."""
    bb = sum(b * b for _, b in rows)
    return sum(b for _, b in rows) / bb if bb else 0.0
