# SPDX-License-Identifier: Apache-2.0
"""What `make gpu-check` runs, one command after another, and what becomes of each."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from benchmarks.gpu.figure import Figure
from benchmarks.harness.results import REPOSITORY, rows_of
from command import Done
from report import Check

SCRATCH = REPOSITORY / "build" / "gpu-check"
SITE = SCRATCH / "site"  # where the package is installed
TESTS = "tests/gpu"
TEST_FILES = ["collectives", "streams", "kernels", "training", "failures", "capture", "profiler"]


@dataclass
class Stage:
    """A command. `left_out` says why it cannot run on this machine."""

    name: str
    limit_s: float
    command: list[str] = field(default_factory=list)
    left_out: str = ""

    def checks(self, done: Done) -> list[Check]:
        """What has become of it."""
        status = "failed" if done.reason else "passed"
        return [Check(self.name, self.name, status, done.reason, done.seconds)]

    def figures(self) -> list[Figure]:
        """What it has measured."""
        return []


@dataclass
class Tests(Stage):
    """A file of tests, which records the outcome of each."""

    record: Path = Path()

    def checks(self, done: Done) -> list[Check]:
        outcomes, begun = [], ""
        for line in self.record.read_text().splitlines() if self.record.exists() else []:
            event = json.loads(line)
            begun = event.get("begins", "")
            if not begun:
                event["name"] = event["name"].partition("::")[2]
                outcomes.append(Check(self.name, **event))
        if begun:
            seconds = done.seconds - sum(each.seconds for each in outcomes)
            name = begun.partition("::")[2]
            outcomes.append(Check(self.name, name, "failed", done.reason, seconds))
            if done.code is None:
                reason = "the check before them did not end"
                outcomes.append(Check(self.name, "all that follow", "left out", reason))
        elif done.reason and not any(each.status == "failed" for each in outcomes):
            outcomes.append(Check(self.name, self.name, "failed", done.reason, done.seconds))
        return outcomes


@dataclass
class Benchmark(Stage):
    """benchmarks.gpu.run; `output` is the folder of its rows."""

    output: Path = Path()

    def figures(self) -> list[Figure]:
        rows = rows_of(self.output / "gpu.jsonl")
        if not rows:
            return []
        sys.path.insert(0, str(SITE))  # what is in summary.py needs what was built
        from benchmarks.gpu.summary import figures

        return figures(rows)


def stages(device: str, scratch: Path, select: str) -> Iterator[Stage]:
    """In this order. `select`: what pytest's -k takes; empty: all tests."""
    is_real = device == "cuda"
    if is_real:
        yield build()
        yield Stage("import", 60, [sys.executable, "-c", IMPORT, str(SITE)])
    for name in TEST_FILES:
        yield tests(name, device, scratch, select)
    yield sanitizer(device)
    yield benchmark(device, scratch)
    if is_real:
        yield cpp_tests()
    else:
        yield Stage("sharing", 0, left_out="ranks of the simulated NCCL have a device each")


def environment(device: str) -> dict[str, str]:
    """Of all stages."""
    found = {**os.environ, "PYTHONDONTWRITEBYTECODE": "1", "PIP_NO_INPUT": "1"}
    if device == "cuda":
        paths = [str(SITE), *filter(None, [os.environ.get("PYTHONPATH")])]
        found["PYTHONPATH"] = os.pathsep.join(paths)
        for name in ["VIRTUAL_ENV", "FARANDOLE_NCCL_LIBRARY"]:
            found.pop(name, None)
    return found


def build() -> Stage:
    """Without a network: what it needs is there, or this fails."""
    command = [sys.executable, "-m", "pip", "install", "--no-deps", "--no-index", "--upgrade"]
    command += ["--no-build-isolation", "--target", str(SITE), "--verbose"]
    command += [f"--config-settings=build-dir={SCRATCH / 'build'}"]
    command += ["--config-settings=cmake.define.FARANDOLE_CUDA=ON"]
    command += ["--config-settings=cmake.define.FARANDOLE_MPI=OFF"]
    return Stage("build", 330, [*command, str(REPOSITORY)])


IMPORT = """
import farandole, sys
assert farandole.__file__.startswith(sys.argv[1]), farandole.__file__
print(farandole.__version__, farandole.__file__)
"""


def tests(name: str, device: str, scratch: Path, select: str) -> Stage:
    record = scratch / f"{name}.jsonl"
    record.unlink(missing_ok=True)
    # The options of pyproject.toml want plug-ins.
    command = [sys.executable, "-m", "pytest", f"{TESTS}/test_{name}.py", "-o", "addopts="]
    command += ["-q", "-p", "no:cacheprovider", "--device", device, "--record", str(record)]
    if select:
        command += ["-k", select]
    return Tests(name, 150, command, record=record)


def sanitizer(device: str) -> Stage:
    program = [sys.executable, f"{TESTS}/short_run.py", device]
    if device == "sim":
        return Stage("short run", 60, program)
    found = shutil.which("compute-sanitizer") or shutil.which(
        "compute-sanitizer", path="/usr/local/cuda/bin"
    )
    if found is None:
        return Stage("sanitizer", 0, left_out="compute-sanitizer is not installed")
    # NCCL asks the driver for what it may lack, and takes the error for the answer.
    options = ["--tool", "memcheck", "--report-api-errors", "no", "--error-exitcode", "9"]
    options += ["--target-processes", "all"]
    return Stage("sanitizer", 120, [found, *options, *program])


def benchmark(device: str, scratch: Path) -> Stage:
    output = scratch / "benchmark"
    shutil.rmtree(output, ignore_errors=True)
    command = [sys.executable, "-m", "benchmarks.gpu.run", "--device", device]
    if device == "sim":
        return Stage("benchmark", 120, [*command, "--quick", "--gpus", "2"])
    command += ["--rounds", "5", "--output", str(output)]
    return Benchmark("benchmark", 150, command, output=output)


def cpp_tests() -> Stage:
    """Those of the plug-in, which need no GPU: whether what was built here works."""
    name = "C++ tests"
    compiler = os.environ.get("CXX", "c++")
    source = "#include <gmock/gmock.h>\n#include <gtest/gtest.h>\n"
    compiles = [compiler, "-E", "-x", "c++", "-"]
    try:
        found = subprocess.run(compiles, input=source, text=True, capture_output=True, check=False)
    except OSError as error:
        return Stage(name, 0, left_out=f"{compiler} cannot be run: {error.strerror}")
    if found.returncode:
        return Stage(name, 0, left_out="GoogleTest is not installed")
    folder = SCRATCH / "cpp"
    configure = f"cmake -S . -B {folder} -G Ninja -DFARANDOLE_TORCH=OFF -DFARANDOLE_CUDA=ON"
    configure += " -DFARANDOLE_MPI=OFF -DFARANDOLE_BUILD_TESTS=ON"
    make = f"cmake --build {folder} --target tests_nccl tests_sim"
    test = f"ctest --test-dir {folder} -L '^(nccl|sim)$' --output-on-failure --no-tests=error"
    return Stage(name, 240, ["sh", "-c", f"{configure} && {make} && {test}"])
