# SPDX-License-Identifier: Apache-2.0
"""What a network between hosts costs, beside plain TCP and beside torch over gloo.

    python -m benchmarks.hosts.run                            # all_reduce; ten minutes
    python -m benchmarks.hosts.run --part all_reduce steps    # training steps, too
    python -m benchmarks.hosts.run --rates 1gbit --sizes 16777216
    python -m benchmarks.hosts.run --quick                    # does it work?

Emulates hosts with network namespaces, for which it must be root. Prints tables and the targets,
and writes hosts.jsonl (one line a row) into build/benchmarks. docs/benchmarks.md explains the
method.
"""

import argparse
from collections.abc import Iterator

from benchmarks.harness.results import Row
from benchmarks.harness.script import Report, new_parser, parse
from benchmarks.hosts import measure, outcome

PARTS = ["all_reduce", "steps"]
RATES = ["100mbit", "1gbit", "10gbit"]
SIZES = [16 << 10, 1 << 20, 16 << 20, 64 << 20]
LAYOUTS = ["0,1", "0,0,1,1", "0,1,0,1", "0,1,2,3", "0,0,1,1,2,2,3,3"]
STEP_LAYOUTS = ["0,1"]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = new_parser(__doc__, "two hosts, small tensors")
    parser.add_argument("--part", choices=PARTS, nargs="+", default=PARTS[:1], help="all_reduce")
    parser.add_argument("--lanes", choices=measure.LANES, nargs="+", metavar="LANE")
    parser.add_argument("--rates", nargs="+", default=RATES, help=" ".join(RATES))
    parser.add_argument("--layouts", nargs="+", default=LAYOUTS, help="the host of each rank")
    parser.add_argument("--sizes", nargs="+", type=int, default=SIZES, help="bytes")
    parser.add_argument("--rounds", type=int, default=3, help="in which all lanes take turns")
    arguments = parse(parser)
    if arguments.quick:
        arguments.rates, arguments.layouts = ["1gbit"], ["0,0,1,1"]
        arguments.sizes, arguments.rounds = [16 << 10, 1 << 20], 1
    return arguments


def measured(arguments: argparse.Namespace) -> Iterator[list[Row]]:
    """The rows of each table."""
    for part in arguments.part:
        layouts = arguments.layouts if part == "all_reduce" else STEP_LAYOUTS
        for layout in layouts:
            for rate in arguments.rates:
                sizes = arguments.sizes if part == "all_reduce" else [arguments.size]
                plan = measure.Plan(part, layout, rate, sizes, arguments.lanes, arguments.rounds)
                yield measure.measure(plan)


if __name__ == "__main__":
    arguments = parse_arguments()
    Report(outcome.FILE, outcome.table, outcome.targets, outcome.place_of).make(
        arguments, measured(arguments)
    )
