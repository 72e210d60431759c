# SPDX-License-Identifier: Apache-2.0
"""Options of `farandole bench collectives`; who measures: these ranks, or ranks that it starts."""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

from farandole.bench import ranks as ranks_of_run
from farandole.bench import rows as files
from farandole.bench.collectives import lanes, plot
from farandole.bench.collectives.operations import OPERATIONS
from farandole.bench.collectives.plan import FEWEST_ITERATIONS, MOST_ITERATIONS, Plan
from farandole.bench.collectives.values import DTYPES, DTYPES_OF_NCCL_TESTS, REDUCTIONS
from farandole.bench.device import device_of
from farandole.bench.numbers import names_of, number_of, numbers_of
from farandole.bench.outcome import RIGHT, USAGE, WRONG
from farandole.bench.sizes import size_of, sizes_between
from farandole.errors import Error, InvalidArgument, sentences

_EPILOG = """
examples:
  farandole bench collectives -n 4 -b 8 -e 1G -f 2
  farandole bench collectives all -n 2,4 -d all --json results.jsonl --plot results.svg
  farandole bench collectives -n 4 --peers gloo,mpi      mpirun starts the ranks
  torchrun --nproc-per-node 8 -m farandole bench collectives all_reduce all_gather
  mpirun -n 4 python -m farandole bench collectives

Options have the names of nccl-tests, except that -n is the number of ranks: its -n, the number of
iterations, is --iters here. Exit status: 0 all results are right, 1 a result is wrong or a rank
failed, 2 wrong options.
"""


def make_parser() -> argparse.ArgumentParser:
    """The options; values are checked by `plan_of`, whose errors say more."""
    parser = argparse.ArgumentParser(
        prog="farandole bench collectives",
        description="Times and verifies collectives, beside other libraries on the same ranks.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("operations", nargs="*", metavar="operation", help=f"{', '.join(OPERATIONS)} or all; "
        "default: all_reduce")  # fmt: skip
    add("-n", "--ranks", metavar="N", help="ranks to start on this host, as 4 or 1,2,4; default: "
        "one for each core or GPU. Under a launcher, its ranks are measured")  # fmt: skip
    add("-b", "--minbytes", metavar="SIZE", default="8", help="smallest size; default: 8")
    add("-e", "--maxbytes", metavar="SIZE", help="largest size; default: 64M")
    add("-f", "--stepfactor", metavar="N", help="each size is N times the one before; default: 4")
    add("-i", "--stepbytes", metavar="SIZE", help="each size is this much more, in place of -f")
    add("-d", "--datatype", metavar="TYPES", default="float32", help=f"{', '.join(DTYPES)} or all; "
        "default: float32")  # fmt: skip
    add("-o", "--op", metavar="OPS", default="sum", help=f"{', '.join(REDUCTIONS)} or all; "
        "default: sum")  # fmt: skip
    add(
        "-r",
        "--root",
        metavar="RANK",
        default="0",
        help="root of operations that have one; default: 0",
    )
    add("-w", "--warmup_iters", metavar="N", default="5", help="calls before measuring; default: 5")
    add("--iters", metavar="N", default="0", help="measured calls of each lane and size; default: "
        f"{FEWEST_ITERATIONS} to {MOST_ITERATIONS}, as many as take 0.2 s")  # fmt: skip
    add("-c", "--check", metavar="0|1", default="1", help="verify results; default: 1")
    add("--peers", metavar="NAMES", help=f"{', '.join(lanes.PEERS)}, all or none: peers to measure "
        "in the same run; default: all that exist here")  # fmt: skip
    add("--bind", action="store_true", help="divide the cores among the ranks that are started; "
        "by default each library places its threads itself")  # fmt: skip
    add("--device", choices=["cpu", "cuda"], help="default: cuda if there is one, else cpu")
    add("--json", metavar="FILE", help="write a line of JSON for each row; - for standard output, "
        "in place of the table")  # fmt: skip
    add("--plot", metavar="FILE", action="append", default=[], help="draw times and bandwidths "
        "into FILE, which ends in .png or .svg; may be given several times")  # fmt: skip
    add("--rows", metavar="FILE", help=argparse.SUPPRESS)  # of the ranks that this command starts
    return parser


def main(arguments: list[str]) -> int:
    """Runs the command; returns its exit status."""
    try:
        is_first = ranks_of_run.is_first()
        options = make_parser().parse_args(arguments)
        plan = plan_of(options)
        counts = _counts(options, plan)
    except Error as error:
        if is_first:
            print(error, file=sys.stderr)
        return USAGE
    if ranks_of_run.launcher() != "alone":
        from farandole.bench.collectives.rank import run

        return run(plan, options)
    return _start_ranks(arguments, options, plan, counts)


def plan_of(options: argparse.Namespace) -> Plan:
    """Checks the options.

    Raises:
        InvalidArgument: one has a wrong value, or two exclude each other.
        NotSupported: what it asks for is not installed.
    """
    for path in map(Path, options.plot):
        plot.check(path)
        if ranks_of_run.is_first():
            files.check_writable("--plot", path)
    if options.json not in (None, "-") and ranks_of_run.is_first():
        files.check_writable("--json", Path(options.json))
    by_default = options.peers is None
    peers = list(lanes.PEERS)
    if not by_default:
        peers = [] if options.peers == "none" else names_of("--peers", options.peers, lanes.PEERS)
    words = options.operations or ["all_reduce"]
    datatypes = options.datatype.split(",")
    datatypes = ",".join(DTYPES_OF_NCCL_TESTS.get(each, each) for each in datatypes)
    check = options.check
    if check not in ("0", "1"):
        check = str(number_of("--check", check, least=0))
    return Plan(
        operations=names_of("operation", ",".join(words), list(OPERATIONS)),
        dtypes=names_of("--datatype", datatypes, list(DTYPES)),
        ops=names_of("--op", options.op, REDUCTIONS),
        sizes=_sizes(options),
        peers=peers,
        peers_by_default=by_default,
        root=number_of("--root", options.root, least=0),
        warmup=number_of("--warmup_iters", options.warmup_iters, least=0),
        iterations=number_of("--iters", options.iters, least=0),
        seconds=0.2,
        rounds=4,
        check=check != "0",
        device=device_of(options.device),
    )


def _sizes(options: argparse.Namespace) -> list[int]:
    """From --minbytes to --maxbytes."""
    if options.stepfactor is not None and options.stepbytes is not None:
        raise InvalidArgument(
            sentences(
                "bench-exclusive",
                "--stepfactor cannot be combined with --stepbytes.",
                "each says how sizes grow.",
                "leave one of them out.",
            )
        )
    least = size_of("--minbytes", options.minbytes)
    most = max(least, 64 * 2**20)
    if options.maxbytes is not None:
        most = size_of("--maxbytes", options.maxbytes)
    if most < least:
        raise InvalidArgument(
            sentences(
                "bench-size-order",
                f"--minbytes {options.minbytes} is above --maxbytes {options.maxbytes}.",
                "there is no size between them.",
                "exchange them.",
            )
        )
    if options.stepbytes is not None:
        step = size_of("--stepbytes", options.stepbytes)
        return list(sizes_between(least, most, step=step))
    factor = number_of("--stepfactor", options.stepfactor or "4", least=2)
    return list(sizes_between(least, most, factor=factor))


def _counts(options: argparse.Namespace, plan: Plan) -> list[int]:
    """How many ranks are started, one run after the other; those of the launcher if there is one.

    Raises:
        InvalidArgument: a launcher started other ranks, or the root is none of them.
    """
    counts = [] if options.ranks is None else numbers_of("-n", options.ranks, least=1)
    if ranks_of_run.launcher() != "alone":
        counts = ranks_of_run.check_count(counts)
    elif not counts:
        counts = [ranks_of_run.default_count(plan.device)]
    if plan.root >= min(counts):
        raise InvalidArgument(
            sentences(
                "bench-root",
                f"--root {plan.root} is not a rank of {min(counts)}.",
                "ranks count from 0.",
                "pass a smaller one.",
            )
        )
    return counts


def _start_ranks(
    arguments: list[str], options: argparse.Namespace, plan: Plan, counts: list[int]
) -> int:
    """One run for each number of ranks; the ranks print the table."""
    by_mpirun = "mpi" in plan.peers and not plan.peers_by_default
    status = RIGHT
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder:
        path = results_of(options) or Path(folder) / "rows.jsonl"
        for count in counts:
            command = ["collectives", *arguments, "--ranks", str(count), "--rows", str(path)]
            ended = ranks_of_run.run_ranks(count, command, by_mpirun=by_mpirun, bind=options.bind)
            if ended == USAGE:  # what only ranks can find out: a peer that cannot be measured
                return USAGE
            status = WRONG if ended else status
        measured = files.read(path)
    draw(measured, options)
    if any(row.get("wrong") for row in measured):
        return WRONG
    return status


def results_of(options: argparse.Namespace) -> Path | None:
    """The file of --json, emptied; rows are added to it one by one."""
    if options.json in (None, "-"):
        return None
    path = Path(options.json)
    path.write_text("")
    return path


def draw(measured: list[files.Row], options: argparse.Namespace) -> None:
    """The plots that the options ask for."""
    for path in map(Path, options.plot):
        plot.draw(measured, path)
