# SPDX-License-Identifier: Apache-2.0
"""What a network between hosts costs, beside plain TCP, OpenMPI and torch over gloo.

    python -m benchmarks.hosts.run                            # everything; twelve minutes
    python -m benchmarks.hosts.run --part formation           # only how long groups take to form
    python -m benchmarks.hosts.run --part all_reduce --rates 1gbit --sizes 16777216
    python -m benchmarks.hosts.run --quick                    # does it work?

Emulates hosts with network namespaces, for which it must be root. Prints tables and the targets,
and writes hosts.jsonl (one line a row) and a plot into build/benchmarks. docs/benchmarks.md
explains the method.
"""

import argparse
from collections.abc import Iterator

from benchmarks.harness.results import Row
from benchmarks.harness.script import Report, new_parser, parse
from benchmarks.hosts import formation, measure, outcome
from benchmarks.hosts.lanes import LANES, OF_PART, hosts_of
from benchmarks.hosts.measure import Plan
from benchmarks.hosts.summary import FILE, PLOTTED_LAYOUT

KIB, MIB = 1 << 10, 1 << 20
FEW, MORE = [16 * KIB, MIB, 16 * MIB], [64 * KIB, 256 * KIB, 4 * MIB, 64 * MIB]
LAYOUTS = ["0,1", "0,0,1,1", "0,1,0,1", "0,1,2,3", "0,0,1,1,2,2,3,3"]
STEP_LAYOUTS = ["0,1", "0,0,1,1"]
ALL_REDUCES = [  # by rate and layout: sizes that take seconds are left out, as is what says no more
    *(("1gbit", layout, FEW) for layout in LAYOUTS if layout != PLOTTED_LAYOUT),
    ("1gbit", PLOTTED_LAYOUT, sorted([*FEW, *MORE])),
    *(("10gbit", layout, [*FEW, 64 * MIB]) for layout in ("0,1", "0,0,1,1")),
    *(("100mbit", layout, [16 * KIB, MIB]) for layout in ("0,1", "0,0,1,1")),
]
FORMATIONS = [("0,0", 15), (",".join(str(rank // 16) for rank in range(64)), 5)]
QUICK_FORMATIONS = [("0,0,1,1", 1)]


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = new_parser(__doc__, "two hosts, small tensors and models")
    parser.add_argument("--part", choices=OF_PART, nargs="+", default=[*OF_PART], help="all")
    parser.add_argument("--lanes", choices=LANES, nargs="+", metavar="LANE")
    parser.add_argument("--rates", nargs="+", help="of all_reduce and steps, as tc writes them")
    parser.add_argument("--layouts", nargs="+", help="the host of each rank, as 0,0,1,1")
    parser.add_argument("--sizes", nargs="+", type=int, help="bytes of all_reduce")
    parser.add_argument("--rounds", type=int, default=3, help="in which all lanes take turns")
    arguments = parse(parser)
    if arguments.quick:
        arguments.rates, arguments.layouts = ["1gbit"], ["0,0,1,1"]
        arguments.sizes, arguments.rounds = [16 * KIB, MIB], 1
    return arguments


def all_reduces(arguments: argparse.Namespace) -> list[tuple[str, str, list[int]]]:
    """Rates, layouts and sizes: the usual ones, or all of those that are asked for."""
    if not (arguments.rates or arguments.layouts or arguments.sizes):
        return ALL_REDUCES
    return [
        (rate, layout, arguments.sizes or FEW)
        for rate in arguments.rates or ["1gbit"]
        for layout in arguments.layouts or LAYOUTS
    ]


def steps(arguments: argparse.Namespace) -> list[tuple[str, str]]:
    """Rates and layouts."""
    layouts = arguments.layouts or STEP_LAYOUTS
    return [(rate, layout) for rate in arguments.rates or ["1gbit"] for layout in layouts]


def measured(arguments: argparse.Namespace) -> Iterator[list[Row]]:
    """The rows of each table."""
    lanes, rounds = arguments.lanes, arguments.rounds
    if "formation" in arguments.part:
        for layout, trials in QUICK_FORMATIONS if arguments.quick else FORMATIONS:
            yield formation.measure(Plan("formation", layout, "1gbit", [""], lanes, trials))
    plans: dict[tuple[str, str], list[Plan]] = {}  # by rate and layout, which share their ranks
    for rate, layout, sizes in all_reduces(arguments) if "all_reduce" in arguments.part else []:
        plan = Plan("all_reduce", layout, rate, sizes, lanes, rounds)
        plans.setdefault((rate, layout), []).append(plan)
    for rate, layout in steps(arguments) if "steps" in arguments.part else []:
        fewer = max(1, round(rounds * 2 / len(hosts_of(layout))))  # each takes longer
        plan = Plan("steps", layout, rate, [arguments.size], lanes, fewer)
        plans.setdefault((rate, layout), []).append(plan)
    for together in plans.values():
        yield from measure.measure(together)


if __name__ == "__main__":
    arguments = parse_arguments()
    report = Report(FILE, outcome.table, outcome.targets, outcome.place_of, "benchmarks.hosts.plot")
    report.make(arguments, measured(arguments))
