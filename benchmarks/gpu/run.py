# SPDX-License-Identifier: Apache-2.0
"""On GPUs: Farandole and torch's NCCL group, beside each other in interleaved rounds.

    python -m benchmarks.gpu.run                       # all GPUs of this host; some minutes
    python -m benchmarks.gpu.run --gpus 1 --part launch steps
    torchrun --nnodes 2 --nproc-per-node 8 ... -m benchmarks.gpu.run     # several hosts
    python -m benchmarks.gpu.run --quick               # tiny models: does it work?
    python -m benchmarks.gpu.run --quick --device sim  # likewise, where no GPU is

Prints a table with ours, the peer, the ratio and the target, and writes gpu.jsonl (one line a row)
into build/benchmarks. docs/benchmarks.md explains the method.
"""

import argparse
import os
import sys
from collections.abc import Callable, Iterator

from benchmarks.gpu.accelerator import ACCELERATORS
from benchmarks.gpu.session import Session, joined
from benchmarks.gpu.summary import FILE, lines, title
from benchmarks.harness.results import REPOSITORY, Row
from benchmarks.harness.script import Report, new_parser, parse
from benchmarks.harness.tables import columns

PARTS = ["bandwidth", "launch", "steps", "adamw"]
QUICK_ROUNDS = 2


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = new_parser(__doc__, "tiny models and tensors, two rounds")
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS, help="all")
    parser.add_argument("--gpus", type=int, help="of this host; all, at most 8")
    parser.add_argument("--rounds", type=int, default=20)
    help_text = "sim: the simulated device of the tests, with --quick; its times mean nothing"
    parser.add_argument("--device", choices=[*ACCELERATORS], default="cuda", help=help_text)
    arguments = parse(parser)
    if arguments.device == "sim" and not arguments.quick:
        parser.error("--device sim needs --quick: times on it mean nothing")
    if arguments.publish and arguments.part != PARTS:
        parser.error("--publish needs a whole run: leave --part out")
    if missing := ACCELERATORS[arguments.device].why_missing():
        parser.error(f"{missing}. This benchmark needs a GPU; --quick --device sim runs without.")
    return arguments


def start_ranks(arguments: argparse.Namespace) -> None:
    """Becomes torchrun where one process for several GPUs was started; else returns."""
    count = ACCELERATORS[arguments.device].count()
    wanted = arguments.gpus or min(8, count)
    if not 1 <= wanted <= count:
        sys.exit(f"--gpus {wanted}: this host has {count}.")
    if "RANK" in os.environ or wanted == 1:
        return
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    own = ["--nproc-per-node", str(wanted), "-m", "benchmarks.gpu.run", *sys.argv[1:]]
    os.chdir(REPOSITORY)
    os.execv(sys.executable, [*torchrun, *own])


def measured(arguments: argparse.Namespace, session: Session) -> Iterator[Row]:
    """All rows."""
    from benchmarks.gpu import adamw, bandwidth, launch, steps

    parts: dict[str, Callable[[Session], list[Row]]] = {
        "bandwidth": bandwidth.measure,
        "launch": launch.measure,
        "steps": steps.measure_all,
        "adamw": adamw.measure,
    }
    for part in arguments.part:
        yield from parts[part](session)


def table(rows: list[Row]) -> str:
    """Of one run."""
    return f"{title(rows[0])}\n{columns(lines(rows))}" if rows else ""


def place_of(row: Row) -> tuple[str, int, int]:
    """Where rows of these GPUs, hosts and ranks stand."""
    return row["gpu"], row["hosts"], row["ranks"]


def main() -> None:
    """Of each rank; the first one reports."""
    arguments = parse_arguments()
    start_ranks(arguments)
    rounds = QUICK_ROUNDS if arguments.quick else arguments.rounds
    with joined(ACCELERATORS[arguments.device], arguments.size, rounds) as session:
        rows = [*measured(arguments, session)]
        is_first = session.rank == 0
    if is_first:
        Report(FILE, table, place_of=place_of).make(arguments, [rows])


if __name__ == "__main__":
    main()
