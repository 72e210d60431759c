# SPDX-License-Identifier: Apache-2.0
"""Compares predicted training steps with measured ones on emulated hosts.

    python -m benchmarks.predict.run                  # everything; five minutes
    python -m benchmarks.predict.run --rates 1gbit --hosts 2 --models resnet
    python -m benchmarks.predict.run --quick          # does it work?

Emulates hosts with network namespaces, for which it must be root. For each rate of the network the
link is measured between two hosts with two sizes of all_reduce. Then, for each number of hosts and
model, steps without communication (which the prediction is made from) and steps of
DistributedDataParallel (which it is compared with) take turns. Prints tables and the target, and
writes predict.jsonl into build/benchmarks. docs/benchmarks.md explains the method.
"""

import argparse
import os
from collections.abc import Iterator

from benchmarks.harness.results import Row
from benchmarks.harness.rounds import say
from benchmarks.harness.script import Report, new_parser, parse
from benchmarks.predict import outcome
from benchmarks.predict.measure import Plan, measure
from benchmarks.predict.summary import FILE, MODELS

RATES, HOSTS = ["1gbit", "100mbit"], [2, 4]
STEPS = {"1gbit": 10}  # a round; other rates take fewer, as steps take longer
FEW_STEPS = 3
MOST_LOAD = 0.5


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = new_parser(__doc__, "two hosts, small models")
    parser.add_argument("--rates", nargs="+", default=RATES, help="as tc writes them")
    parser.add_argument("--hosts", nargs="+", type=int, default=HOSTS, help="each with one rank")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=[*MODELS], help="all")
    parser.add_argument("--rounds", type=int, default=3, help="in which all models take turns")
    arguments = parse(parser)
    if arguments.quick:
        arguments.rates, arguments.hosts, arguments.rounds = ["1gbit"], [2], 1
    return arguments


def measured(arguments: argparse.Namespace) -> Iterator[list[Row]]:
    """The rows of each table."""
    if (load := os.getloadavg()[0]) > MOST_LOAD:
        say(f"The load of this machine is {load:.1f}: steps are noisy, and errors too.")
    for rate in arguments.rates:
        steps = STEPS.get(rate, FEW_STEPS)
        hosts, models = sorted(arguments.hosts), arguments.models
        yield from measure(Plan(rate, hosts, models, arguments.size, arguments.rounds, steps))


if __name__ == "__main__":
    arguments = parse_arguments()
    report = Report(FILE, outcome.table, outcome.targets, outcome.place_of)
    report.make(arguments, measured(arguments))
