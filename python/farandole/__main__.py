# SPDX-License-Identifier: Apache-2.0
"""The command `farandole`, also `python -m farandole`."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import farandole


def main(arguments: list[str] | None = None) -> int:
    """Runs the command line; returns its exit status."""
    parser = argparse.ArgumentParser(prog="farandole", description="Data-parallel training")
    parser.add_argument("--version", action="version", version=farandole.__version__)
    parser.add_argument(
        "--cmake-dir",
        action="store_true",
        help="print the folder for CMake's farandole_DIR: find_package(farandole) finds it there",
    )
    commands = parser.add_subparsers(dest="command", title="commands")
    doctor = commands.add_parser("doctor", help="what was built, what works here, a self-test")
    doctor.add_argument("--json", action="store_true", help="for programs")
    parsed = parser.parse_args(arguments)
    if parsed.cmake_dir:
        return print_cmake_dir()
    if parsed.command == "doctor":
        from farandole.doctor import main as run_doctor

        return run_doctor(as_json=parsed.json)
    parser.print_help()
    return 2


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
