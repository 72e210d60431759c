# SPDX-License-Identifier: Apache-2.0
"""The command `farandole`, also `python -m farandole`."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from pathlib import Path

import farandole


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    given = sys.argv[1:] if arguments is None else arguments
    if given[:1] == ["run"]:
        from farandole.run.command_line import main as run_ranks

        return run_ranks(given[1:])
    if given[:1] == ["bench"]:
        from farandole.bench.command_line import main as run_bench

        return run_bench(given[1:])
    if given[:1] == ["report"]:
        from farandole.report.command_line import main as run_report

        return _into_pipe(run_report, given[1:])
    if given[:1] == ["migrate"]:
        from farandole.migrate.command_line import main as run_migrate

        return _into_pipe(run_migrate, given[1:])
    if given[:1] == ["top"]:
        from farandole.top.command_line import main as run_top

        return _into_pipe(run_top, given[1:])
    parser = argparse.ArgumentParser(prog="farandole", description="Data-parallel training")
    parser.add_argument("--version", action="version", version=farandole.__version__)
    parser.add_argument(
        "--cmake-dir",
        action="store_true",
        help="print the folder for CMake's farandole_DIR: find_package(farandole) finds it there",
    )
    commands = parser.add_subparsers(dest="command", title="commands")
    doctor = commands.add_parser("doctor", help="what was built, what works here, a self-test")
    doctor.add_argument("--json", action="store_true", help="print JSON, for programs")
    commands.add_parser(
        "run", help="start the ranks of a program; farandole run --help", add_help=False
    )
    commands.add_parser(
        "bench",
        help="how fast it is here; farandole bench --help",
        add_help=False,
    )
    commands.add_parser(
        "report", help="what a recorded run did; farandole report --help", add_help=False
    )
    commands.add_parser(
        "migrate",
        help="what a script for Horovod or SageMaker's libraries gets; farandole migrate --help",
        add_help=False,
    )
    commands.add_parser("top", help="what a running job does; farandole top --help", add_help=False)
    parsed = parser.parse_args(given)
    if parsed.cmake_dir:
        return print_cmake_dir()
    if parsed.command == "doctor":
        from farandole.doctor import main as run_doctor

        return run_doctor(as_json=parsed.json)
    parser.print_help()
    return 2


def _into_pipe(command: Callable[[list[str]], int], arguments: list[str]) -> int:
    """Ends in peace if its reader has seen enough, as `head` does."""
    try:
        status = command(arguments)
        sys.stdout.flush()
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())  # for the flush at exit
        return 0
    return status


def print_cmake_dir() -> int:
    """Prints lib/cmake/farandole inside the package, with nothing around it."""
    folder = Path(farandole.__file__).resolve().parent / "lib" / "cmake" / "farandole"
    if not folder.is_dir():
        print(
            f"{folder} does not exist.\n"
            "why: this copy of Farandole was not installed by pip install.\n"
            "fix: pip install . in Farandole's source tree.",
            file=sys.stderr,
        )
        return 1
    print(folder)
    return 0


if __name__ == "__main__":
    sys.exit(main())
