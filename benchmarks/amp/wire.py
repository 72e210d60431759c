# SPDX-License-Identifier: Apache-2.0
"""What gradients in bfloat16 on the wire save, and what the loss is after training with them."""

from benchmarks.amp.lanes import WIRE
from benchmarks.harness.ranks import Ranks, commands_of_module
from benchmarks.harness.results import Row
from benchmarks.harness.rounds import say

RANKS = 2
STEPS = {"full": 200, "quick": 20}


def measure(size: str) -> list[Row]:
    """One row a lane; raises RuntimeError if ranks differ."""
    rows: dict[str, Row] = {}
    with Ranks("wire", RANKS, commands_of_module("amp.wire_worker", size)) as ranks:
        for lane in WIRE:
            answers = ranks.ask(f"{lane} {STEPS[size]}")
            row = rows[lane] = make_row(size, lane, answers)
            whole = rows[lane.partition("_")[0]]
            if whole is not row:
                row["bytes_ratio"] = round(row["bytes"] / whole["bytes"], 5)
                row["loss_percent"] = round(100 * (row["loss"] / whole["loss"] - 1), 5)
            say(f"wire, {lane}: {row['bytes']:.0f} bytes a step, loss {row['loss']:.5f}")
    return [*rows.values()]


def make_row(size: str, lane: str, answers: list[Row]) -> Row:
    """See docs/benchmarks.md."""
    if len({answer["digest"] for answer in answers}) > 1:
        raise RuntimeError(f"wire, {lane}: ranks have different parameters")
    row: Row = {"part": "wire", "task": "wire", "size": size, "ranks": RANKS, "lane": lane}
    row |= {"steps": STEPS[size], **answers[0], "verified": True}
    row["bytes"] = sum(answer["bytes"] for answer in answers) / RANKS
    del row["digest"]
    return row
