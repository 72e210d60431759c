# SPDX-License-Identifier: Apache-2.0
"""Checks Farandole on the GPUs of this machine: `make gpu-check`, or python tests/gpu/check.py.

It needs no network, takes at most ten minutes, goes on after a failure, and writes one JSON file
(report.py). It ends with 0 if nothing has failed, 1 if something has, 2 if it cannot begin.
"""

from __future__ import annotations

import argparse
import json
import signal
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from types import FrameType
from typing import Any

sys.path[:0] = [str(Path(__file__).parents[2]), str(Path(__file__).parent)]

BUDGET_S = 590.0
LEAST_S = 15.0  # with less left a stage is not begun
DESCRIBE = """
import json, sys, torch, platform
from benchmarks.gpu.accelerator import ACCELERATORS
from benchmarks.gpu import machine
accelerator = ACCELERATORS[sys.argv[1]]
found = {"torch": torch.__version__, "python": platform.python_version()}
missing = accelerator.why_missing()
found |= {"missing": missing} if missing else machine.describe(accelerator)
print(json.dumps(found))
"""


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    help_text = "of the report (benchmarks/results/gpu-check-<GPU>.json)"
    parser.add_argument("--output", type=Path, help=help_text)
    help_text = "sim: the simulated device, which shows that the checks work, not that GPUs do"
    parser.add_argument("--device", choices=["cuda", "sim"], default="cuda", help=help_text)
    parser.add_argument("--only", nargs="+", metavar="STAGE", help="leave the other stages out")
    parser.add_argument("-k", dest="select", default="", help="which tests, as pytest has it")
    parser.add_argument("--budget", type=float, default=BUDGET_S, help="seconds")
    arguments = parser.parse_args()
    if arguments.device == "sim" and arguments.output is None:
        parser.error("--device sim needs --output: its report says nothing about GPUs")
    return arguments


def stop(text: str) -> None:
    """For what keeps it from beginning."""
    print(f"gpu-check: {text}", file=sys.stderr)
    sys.exit(2)


def describe_machine(device: str) -> dict[str, Any]:
    """In a process of its own: this one takes no memory of a GPU."""
    repository = Path(__file__).parents[2]
    done = subprocess.run(
        [sys.executable, "-c", DESCRIBE, device],
        cwd=repository,
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode:
        last = (done.stderr.strip() or "no output").splitlines()[-1]
        stop(
            f"{sys.executable} cannot say which GPU is here.\nwhy: {last}\n"
            "fix: name a Python that has torch with CUDA: make gpu-check PYTHON=..."
        )
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    if "missing" in found:
        stop(
            f"there is nothing to check.\nwhy: {found['missing']}.\n"
            "fix: run it on a machine with a GPU, with a Python that has torch with CUDA "
            "(make gpu-check PYTHON=...). What needs no GPU is tested by make test; the checks "
            "themselves run by python tests/gpu/check.py --device sim --output FILE."
        )
    return found


def check_writable(path: Path) -> None:
    """Now, not after ten minutes."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile(dir=path.parent):
            pass
        if path.is_dir():
            raise IsADirectoryError(21, "it is a folder")
    except OSError as error:
        stop(
            f"the report cannot be written to {path}.\nwhy: {error.strerror}.\n"
            "fix: name a file: make gpu-check OUT=/tmp/gpu-check.json"
        )


def run_stages(report: Any, arguments: argparse.Namespace, scratch: Path) -> None:
    """All of them, whatever becomes of each; KeyboardInterrupt leaves the rest out."""
    import command
    import stages
    from report import Check

    begin = time.monotonic()
    environment = stages.environment(arguments.device)
    why_not = ""  # once nothing can run any more
    for stage in stages.stages(arguments.device, scratch, arguments.select):
        left_s = arguments.budget - (time.monotonic() - begin)
        reason = why_not or stage.left_out
        if not reason and arguments.only and stage.name not in arguments.only:
            reason = "--only names others"
        elif not reason and left_s < LEAST_S:
            reason = "no time is left"
        if reason:
            report.checks.append(Check(stage.name, stage.name, "left out", reason))
            continue
        limit_s = min(stage.limit_s, left_s)
        print(f"{stage.name}, at most {limit_s:.0f} s ...", flush=True)
        log = scratch / f"{stage.name.replace(' ', '-')}.log"
        began = time.monotonic()
        try:
            done = command.run(stage.command, limit_s, log, stages.REPOSITORY, environment)
            report.checks += stage.checks(done)
            report.figures += stage.figures()
        except KeyboardInterrupt:
            why_not = "it was interrupted"
            seconds = time.monotonic() - began
            report.checks.append(Check(stage.name, stage.name, "failed", why_not, seconds))
        except OSError as error:
            report.checks.append(Check(stage.name, stage.name, "failed", str(error)))
        if stage.name in {"build", "import"} and report.checks[-1].status == "failed":
            why_not = why_not or f"{stage.name} has failed"
    report.seconds = time.monotonic() - begin


def main() -> int:
    arguments = parse_arguments()
    if arguments.output:
        check_writable(arguments.output.absolute())
    machine = describe_machine(arguments.device)
    from benchmarks.harness.results import PUBLISHED
    from report import Report, file_name

    path = (arguments.output or PUBLISHED / file_name(machine["gpu"])).absolute()
    check_writable(path)
    print(f"{machine['gpus']} x {machine['gpu']}, torch {machine['torch']}", flush=True)

    def interrupt(number: int, frame: FrameType | None) -> None:
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    report = Report(machine)
    with tempfile.TemporaryDirectory(prefix="farandole-gpu-check-") as scratch:
        run_stages(report, arguments, Path(scratch))
    written = report.write(path)
    print(f"\n{report.text()}\nreport: {written}", flush=True)
    return 1 if report.has_failed or written != path else 0


if __name__ == "__main__":
    sys.exit(main())
