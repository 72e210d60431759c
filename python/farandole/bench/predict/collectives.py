# SPDX-License-Identifier: Apache-2.0
"""How long a collective takes: rounds and bytes on each level, by algorithm.

For S bytes on N = H * R ranks, R on each of H hosts; all algorithms are pipelined, so the slower
level sets the pace, and latencies of both levels add up:

    seconds = launch + sum over levels (rounds * latency) + max over levels (bytes / bandwidth)

all_reduce:

==========  =====================  ==========================  ============================
algorithm   rounds within, between bytes of a rank within      bytes that leave a host
==========  =====================  ==========================  ============================
stripes     2, 1 or 2              2 (R - 1) / R * S           (H - 1) S in one round, or
                                                               2 (H - 1) / H * S in two
ring        2 (N - H), 2 (H - 1)   2 (N - 1) / N * S           2 (N - 1) / N * S
tree        2 (R - 1), 2 log2 H    2 S / 0.92                  2 S / 0.92
==========  =====================  ==========================  ============================

reduce_scatter and all_gather are halves of it. Stripes: src/comm/hosts/multi_host_reductions.cpp
(one round on two hosts and for small stripes). Ring and tree, and the tree's 0.92: NCCL's own
model (2.30.7), https://github.com/NVIDIA/nccl/blob/master/src/graph/tuning.cc.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from enum import Enum

from farandole.bench.predict.layout import Layout
from farandole.bench.predict.links import Algorithm, Link, Links

ONE_ROUND_BYTES = 32 << 10  # of a stripe; kOneRoundBytes of multi_host_reductions.cpp
TREE_EFFICIENCY = 0.92


class Operation(Enum):
    """What is called."""

    ALL_REDUCE = "all_reduce"
    REDUCE_SCATTER = "reduce_scatter"
    ALL_GATHER = "all_gather"
    BROADCAST = "broadcast"


@dataclass(frozen=True)
class Traffic:
    """On one level."""

    rounds: float = 0.0
    """Messages that wait for each other."""
    bytes: float = 0.0
    """In each direction."""
    messages: float = 0.0
    """Beyond the first of each round."""


@dataclass(frozen=True)
class Cost:
    """Of one collective."""

    seconds: float
    cpu_s: float
    """Of each host."""


Levels = tuple[Traffic, Traffic]  # within a host, between hosts


def cost_of(operation: Operation, size: float, layout: Layout, links: Links) -> Cost:
    """For tensors of ``size`` bytes; of all ranks' blocks together, as nccl-tests counts them."""
    if layout.ranks == 1:
        return Cost(0.0, 0.0)
    return min(
        (_cost(levels, links) for levels in ways(operation, size, layout, links.algorithm)),
        key=lambda cost: cost.seconds,
    )


def ways(operation: Operation, size: float, layout: Layout, algorithm: Algorithm) -> list[Levels]:
    """What may be taken, whichever is faster."""
    if algorithm is Algorithm.STRIPES:
        return [stripes(operation, size, layout)]
    found = []
    has_tree = operation is Operation.ALL_REDUCE and layout.hosts > 1
    if algorithm is not Algorithm.TREE or not has_tree:
        found.append(ring(operation, size, layout))
    if algorithm is not Algorithm.RING and has_tree:
        found.append(tree(size, layout))
    return found


def stripes(operation: Operation, size: float, layout: Layout) -> Levels:
    """Of Farandole's own collectives."""
    hosts, local = layout.hosts, layout.ranks_per_host
    phases = 2 if operation is Operation.ALL_REDUCE else 1
    within = Traffic(phases, phases * (local - 1) / local * size) if local > 1 else Traffic()
    if hosts == 1:
        return within, Traffic()
    is_whole = operation is Operation.BROADCAST or (
        operation is Operation.ALL_REDUCE and (hosts == 2 or size / local <= ONE_ROUND_BYTES)
    )
    rounds = 1 if is_whole else phases
    moved = (hosts - 1) * size if is_whole else phases * (hosts - 1) / hosts * size
    return within, Traffic(rounds, moved, rounds * (hosts - 2))


def ring(operation: Operation, size: float, layout: Layout) -> Levels:
    """Over all ranks, which enters and leaves each host once."""
    hosts, ranks = layout.hosts, layout.ranks
    phases = 2 if operation is Operation.ALL_REDUCE else 1
    moved = size if operation is Operation.BROADCAST else phases * (ranks - 1) / ranks * size
    between = Traffic(phases * (hosts - 1), moved) if hosts > 1 else Traffic()
    if layout.ranks_per_host == 1:
        return Traffic(), between
    return Traffic(phases * (ranks - hosts), moved), between


def tree(size: float, layout: Layout) -> Levels:
    """An all_reduce over several hosts: up and down."""
    moved = 2 * size / TREE_EFFICIENCY
    local = layout.ranks_per_host
    within = Traffic(2 * (local - 1), moved) if local > 1 else Traffic()
    return within, Traffic(2 * math.ceil(math.log2(layout.hosts)), moved)


def _cost(levels: Levels, links: Links) -> Cost:
    within, between = levels
    waits = _latencies(within, links.within) + _latencies(between, links.between)
    moves = max(within.bytes / links.within.bytes_per_s, between.bytes / links.between.bytes_per_s)
    return Cost(links.launch_s + waits + moves, 2 * between.bytes * links.between.cpu_s_per_byte)


def _latencies(traffic: Traffic, link: Link) -> float:
    return traffic.rounds * link.latency_s + traffic.messages * link.message_s
