# SPDX-License-Identifier: Apache-2.0
"""One rank of `farandole bench collectives`; rank 0 prints."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path

import farandole
from farandole.bench import machine, rows
from farandole.bench.collectives import command_line, lanes, table
from farandole.bench.collectives.lanes import Lane, TorchLane
from farandole.bench.collectives.measure import Bench, iterate
from farandole.bench.collectives.plan import Plan
from farandole.bench.device import own_device
from farandole.bench.outcome import RIGHT, USAGE, WRONG
from farandole.bench.progress import Progress
from farandole.bench.ranks import launcher
from farandole.errors import Error, InvalidArgument, sentences


def run(plan: Plan, options: argparse.Namespace) -> int:
    """Measures with the ranks of the launcher; returns the exit status."""
    device = own_device(plan.device)
    farandole.init_process_group()
    is_first = farandole.rank() == 0
    try:
        chosen, left_out = choose(plan)
    except InvalidArgument as error:
        if is_first:
            print(error, file=sys.stderr)
        return USAGE
    try:
        measured = _measure(plan, options, Bench(plan, chosen, device), chosen, left_out)
    except Error as error:
        print(f"farandole bench: rank {farandole.rank()}: {error}", file=sys.stderr)
        return WRONG
    farandole.destroy()
    if options.rows is not None:
        return RIGHT  # who started these ranks reads the rows
    if is_first:
        command_line.draw(measured, options)
    return WRONG if any(row.get("wrong") for row in measured) else RIGHT


def choose(plan: Plan) -> tuple[list[Lane], dict[str, str]]:
    """The lanes, and why each other peer is left out. Collective.

    Raises:
        InvalidArgument: a peer that was asked for cannot be measured here.
    """
    obstacles = {peer: lanes.obstacle_to(peer, plan.device) for peer in plan.peers}
    left_out = {peer: why for peer, why in obstacles.items() if why}
    if left_out and not plan.peers_by_default:
        peer, why = next(iter(left_out.items()))
        raise InvalidArgument(
            sentences(
                "bench-peer",
                f"--peers asks for {peer}, which cannot be measured here.",
                f"{why}.",
                "leave it out, or leave --peers out: then all that exist are measured.",
            )
        )
    ours = TorchLane(lanes.OURS, farandole.default_group())
    return [ours, *(lanes.make(peer) for peer, why in obstacles.items() if not why)], left_out


def _measure(
    plan: Plan,
    options: argparse.Namespace,
    bench: Bench,
    chosen: list[Lane],
    left_out: dict[str, str],
) -> list[rows.Row]:
    """All rows; rank 0 prints and saves each as soon as it is there."""
    ranks, is_first = farandole.world_size(), farandole.rank() == 0
    where = machine.describe(plan.device)
    where |= {"launcher": launcher(), "local_ranks": farandole.local_world_size()}
    cases = list(plan.cases(ranks))
    progress = Progress(len(cases), shown=is_first)
    results = None
    if is_first:
        results = Path(options.rows) if options.rows else command_line.results_of(options)
    as_table = is_first and options.json != "-"
    if as_table:
        _print_head(where, chosen, left_out)
    measured: list[rows.Row] = []
    operation = ""
    found = iterate(bench, plan, ranks)
    for case in cases:
        progress.begin(f"{case.operation.name} of {case.bytes} B {case.dtype}, {ranks} ranks")
        own = [{**row, **where} for row in next(found)]
        progress.end()
        measured += own
        if as_table and case.operation.name != operation:
            operation = case.operation.name
            print(f"\n# {operation}, {ranks} rank{'s' * (ranks > 1)}\n{table.HEAD}\n{table.UNITS}")
        for row in own if is_first else []:
            if results is not None:  # before it is seen, so that what was seen is there
                with rows.writing("--json", results):
                    rows.append(results, row)
            print(table.line_of(row) if as_table else json.dumps(row), flush=True)
    if as_table:
        print(table.verdict_of(measured), flush=True)
    return measured


def _print_head(where: rows.Row, chosen: list[Lane], left_out: dict[str, str]) -> None:
    ranks, local = farandole.world_size(), where["local_ranks"]
    print(
        f"# farandole {where['farandole']}, torch {where['torch']}, "
        f"{where['accelerator'] or where['cpu']}; {ranks} rank{'s' * (ranks > 1)}, {local} on this "
        f"host, started by {where['launcher']}; lanes: {', '.join(lane.name for lane in chosen)}"
    )
    if busy := machine.busy_text():
        print(busy)
    for peer, why in left_out.items():
        print(f"# without {peer}: {why}")
