# SPDX-License-Identifier: Apache-2.0
"""Options of `farandole bench train`, and the sweep over numbers of ranks."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Iterable
from pathlib import Path

from farandole.bench import machine, numbers, rows
from farandole.bench import ranks as ranks_of_run
from farandole.bench.device import device_of
from farandole.bench.outcome import RIGHT, USAGE, WRONG
from farandole.bench.train import scaling, table
from farandole.bench.train.lanes import PRECISIONS, TITLES
from farandole.bench.train.page import page
from farandole.bench.train.plan import FIELDS, Cell, Plan, key_of, pending
from farandole.bench.train.tasks import BUILT_IN, task_of
from farandole.errors import Error, InvalidArgument, sentences
from farandole.run import cores

RESULTS, PAGE = "results.jsonl", "report.html"
_EPILOG = """
examples:
  farandole bench train                                  resnet18 on 1, 2, 4 ... ranks
  farandole bench train --model gpt2_small,mlp2000 -n 1,2 --precision float32,bf16
  farandole bench train --model my_model:make --batch-size 16
  torchrun --nproc-per-node 8 -m farandole bench train --model resnet50 --output sweep

lanes: ours (DistributedDataParallel), zero (the same with ZeroRedundancyOptimizer), torch (torch's
DistributedDataParallel on the same group), limit (ranks that never communicate), single (one
process with all cores, at the same global batch).

Rows that are in FOLDER/results.jsonl are not measured again, so a sweep that was interrupted
resumes. Exit status: 0 all was measured and is right, 1 a lane is wrong or a rank failed, 2 wrong
options.
"""


def make_parser() -> argparse.ArgumentParser:
    """The options; values are checked by `plan_of`, whose errors say more."""
    parser = argparse.ArgumentParser(
        prog="farandole bench train",
        description="Throughput of training steps on 1, 2, 4 ... ranks, beside torch's.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("--model", metavar="NAMES", default="resnet18", help=f"{', '.join(BUILT_IN)}, or your "
        "module:function, which returns (model, new_batch, loss); default: resnet18")  # fmt: skip
    add("-n", "--ranks", metavar="N", help="numbers of ranks to start on this host, as 1,2,4; "
        "default: 1, 2, 4 ... up to one for each core or GPU. Under a launcher, its ranks are "
        "measured")  # fmt: skip
    add("--scaling", metavar="KINDS", default="all", help="weak (each rank has --batch-size), "
        "strong (all have --global-batch-size) or all; default: all")  # fmt: skip
    add("--precision", metavar="TYPES", default="float32", help=f"{', '.join(PRECISIONS)} or all; "
        "default: float32")  # fmt: skip
    add("--lanes", metavar="NAMES", default="all", help=f"{', '.join(TITLES)} or all; default: all")
    add("--batch-size", metavar="N", help="samples of each rank in weak scaling; the default "
        "depends on the model")  # fmt: skip
    add("--global-batch-size", metavar="N", help="samples of all ranks in strong scaling; default: "
        "those that weak scaling has on the most ranks")  # fmt: skip
    add("--seconds", metavar="N", default="10", help="time to measure each lane; default: 10")
    add(
        "--rounds",
        metavar="N",
        default="5",
        help="number of rounds, in which lanes take turns; default: 5",
    )
    add("--device", choices=["cpu", "cuda"], help="default: cuda if there is one, else cpu")
    add("--output", metavar="FOLDER", default="farandole-bench", help=f"folder for {RESULTS} and "
        f"{PAGE}; default: farandole-bench")  # fmt: skip
    add("--restart", action="store_true", help="measure everything again")
    # Of the ranks that this command starts:
    add("--most-ranks", default="0", help=argparse.SUPPRESS)
    add("--single-of", default="", help=argparse.SUPPRESS)
    return parser


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit status."""
    is_alone = ranks_of_run.launcher() == "alone"
    options = make_parser().parse_args(arguments)
    try:
        plan = plan_of(options)
        counts = _counts(options, plan)
        results = _results(options)
    except Error as error:
        if ranks_of_run.is_first():
            print(error, file=sys.stderr)
        return USAGE
    try:
        if is_alone:
            return _sweep(arguments, plan, counts, results)
        return _measure(options, plan, counts, results)
    except Error as error:  # of what is written
        print(error, file=sys.stderr)
        return WRONG


def _measure(options: argparse.Namespace, plan: Plan, counts: list[int], results: Path) -> int:
    """What a rank of a launcher does; a launcher of the user has no one else to write the page."""
    from farandole.bench.train.rank import run

    most = numbers.number_of("--most-ranks", options.most_ranks, least=0)
    if options.single_of:
        return run(plan, results, most, single=numbers.numbers_of("-n", options.single_of, least=1))
    is_own = most == 0
    if is_own and ranks_of_run.is_first():
        print_head(plan, counts)
        if plan.with_single:
            print("# without single: only farandole bench train alone measures it")
    status = run(plan, results, max(most, *counts), single=[])
    if is_own and ranks_of_run.is_first():
        report(results)
    return status


def plan_of(options: argparse.Namespace) -> Plan:
    """Checks the options.

    Raises:
        InvalidArgument: one has a wrong value.
        NotSupported: there is no GPU.
    """
    device = device_of(options.device)
    chosen = numbers.names_of("--lanes", options.lanes, list(TITLES))
    models = list(BUILT_IN) if options.model == "all" else options.model.split(",")
    return Plan(
        tasks=[task_of(name) for name in dict.fromkeys(models)],
        precisions=numbers.names_of("--precision", options.precision, list(PRECISIONS)),
        scalings=numbers.names_of("--scaling", options.scaling, ["weak", "strong"]),
        lanes=[lane for lane in chosen if lane != "single"],
        with_single="single" in chosen and device == "cpu",
        batch_size=_optional("--batch-size", options.batch_size),
        global_batch_size=_optional("--global-batch-size", options.global_batch_size),
        seconds=numbers.number_of("--seconds", options.seconds, least=0),
        rounds=numbers.number_of("--rounds", options.rounds, least=1),
        device=device,
    )


def _optional(option: str, text: str | None) -> int | None:
    return None if text is None else numbers.number_of(option, text, least=1)


def _counts(options: argparse.Namespace, plan: Plan) -> list[int]:
    """The numbers of ranks of the sweep; that of the launcher if there is one."""
    asked = [] if options.ranks is None else numbers.numbers_of("-n", options.ranks, least=1)
    if ranks_of_run.launcher() != "alone":
        return ranks_of_run.check_count(asked)
    return asked or doubled(ranks_of_run.default_count(plan.device))


def doubled(most: int) -> list[int]:
    """1, 2, 4 ... and ``most``."""
    return sorted({*(2**power for power in range(most.bit_length())), most})


def _results(options: argparse.Namespace) -> Path:
    """The file of results, of which --restart leaves nothing."""
    folder = Path(options.output)
    path = folder / RESULTS
    if not ranks_of_run.is_first():
        return path
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InvalidArgument(
            sentences(
                "bench-folder",
                f"--output {folder} cannot be made.",
                f"{error.strerror}: {error.filename}.",
                "pass a folder where you may write.",
            )
        ) from error
    rows.check_writable("--output", path)
    if options.restart:
        path.write_text("")
    rows.check_fields("--output", path, FIELDS)
    return path


def _sweep(arguments: list[str], plan: Plan, counts: list[int], results: Path) -> int:
    """One run for each number of ranks, then one process; what was measured is not again."""
    most = max(counts)
    print_head(plan, counts)
    status = RIGHT
    command = ["train", *(each for each in arguments if each != "--restart")]
    threads = os.environ.get("OMP_NUM_THREADS") or str(cores.divide_this_host(most).threads)
    where = {**machine.describe(plan.device), "device": plan.device}
    for count in counts:
        if _are_left(plan.cells(count, most), results, where, threads):
            own = [*command, "--ranks", str(count), "--most-ranks", str(most)]
            if ranks_of_run.run_ranks(count, own, variables={"OMP_NUM_THREADS": threads}):
                status = WRONG
    all_threads = str(cores.divide_this_host(1).threads)
    if _are_left(plan.single_cells(counts), results, where, all_threads):
        own = [*command, "--ranks", "1", "--single-of", ",".join(map(str, counts))]
        if ranks_of_run.run_ranks(1, own, variables={"OMP_NUM_THREADS": all_threads}):
            status = WRONG
    report(results)
    return status


def print_head(plan: Plan, counts: list[int]) -> None:
    """What comes before the first row."""
    if busy := machine.busy_text():
        print(busy)
    batch = plan.global_batch_size
    too_many = [str(each) for each in counts if batch is not None and batch < each]
    if too_many and "strong" in plan.scalings:
        print(f"# without strong scaling to {', '.join(too_many)} ranks: a global batch of "
              f"{batch} has fewer samples than ranks")  # fmt: skip
    shown = [*plan.lanes, *["single"] * plan.with_single]
    print(f"# lanes: {'; '.join(f'{lane}: {TITLES[lane]}' for lane in shown)}")
    print(table.HEAD, flush=True)


def _are_left(cells: Iterable[Cell], results: Path, where: rows.Row, threads: str) -> bool:
    """Whether ranks with so many threads have something to measure; if in doubt they find out."""
    where = {**where, "threads": int(threads) if threads.isdigit() else None}
    done = {key_of(row) for row in rows.read(results)}
    return any(pending(cell, done, where) for cell in cells)


def report(results: Path) -> None:
    """Writes the page of all rows, and prints what they say."""
    measured = rows.read(results)
    if not measured:
        return
    path = results.with_name(PAGE)
    with rows.writing("--output", path):
        path.write_text(page(measured))
    for line in (*scaling.efficiencies(measured), *scaling.advice(measured)):
        print(f"# {line}")
    print(f"# {len(measured)} rows in {results}; charts in {path}", flush=True)
