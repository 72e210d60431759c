# SPDX-License-Identifier: Apache-2.0
"""How long `farandole report` reads an hour of 8 ranks, and how much memory that takes.

    python -m benchmarks.report.run            # a minute
    python -m benchmarks.report.run --quick    # of one minute of a run: does it work?

Prints a line and the targets, and writes report.jsonl into build/benchmarks.
"""

import argparse
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from benchmarks.harness.results import Row
from benchmarks.harness.script import Report, new_parser, parse
from benchmarks.harness.targets import Target, verdict
from benchmarks.report.recorded_run import write

SECONDS = {"quick": 60, "full": 3600}
MOST_S = 15
MOST_MB = 400


def measured(arguments: argparse.Namespace) -> Iterator[list[Row]]:
    """One row."""
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder:
        profile, page = Path(folder, "profile"), Path(folder, "report.html")
        read_bytes = write(profile, SECONDS[arguments.size])
        command = ["report", str(profile), "-o", str(page)]
        imported = _run("")
        report = _run(f"from farandole.__main__ import main; main({command!r})")
        yield [
            {
                "lane": "report",
                "read_mb": round(read_bytes / 1e6, 1),
                **report,
                "import_s": imported["wall_s"],
                "import_mb": imported["peak_mb"],
                "page_bytes": page.stat().st_size,
            }
        ]


_TAIL = """
import os, pathlib
status = pathlib.Path("/proc/self/status").read_text()
print()
print(sum(os.times()[:2]), status.split("VmHWM:")[1].split()[0])
"""


def _run(program: str) -> Row:
    """Time and memory of a process of its own."""
    begin = time.perf_counter()
    command = [sys.executable, "-c", f"import farandole; {program}{_TAIL}"]
    printed = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True).stdout
    cpu_s, peak_kib = map(float, printed.splitlines()[-1].split())
    return {
        "wall_s": round(time.perf_counter() - begin, 2),
        "cpu_s": round(cpu_s, 2),
        "peak_mb": round(peak_kib * 1024 / 1e6),
    }


def table(rows: list[Row]) -> str:
    """In one line."""
    (row,) = rows
    return (
        f"{row['read_mb']} MB: {row['wall_s']} s ({row['cpu_s']} s of a core), {row['peak_mb']} MB "
        f"of memory; of these the import takes {row['import_s']} s and {row['import_mb']} MB"
    )


def targets(rows: list[Row]) -> list[Target]:
    """The import of torch is part of the time, not of the memory."""
    (row,) = rows
    own_mb = row["peak_mb"] - row["import_mb"]
    return [
        (f"a report <= {MOST_S} s", f"{row['wall_s']} s, {verdict(row['wall_s'], MOST_S)}"),
        (f"memory <= {MOST_MB} MB", f"{own_mb} MB, {verdict(own_mb, MOST_MB)}"),
    ]


if __name__ == "__main__":
    given = parse(new_parser(__doc__, "of one minute of a run"))
    Report("report.jsonl", table, targets).make(given, measured(given))
