# SPDX-License-Identifier: Apache-2.0
"""Which sources were measured."""

import subprocess

from benchmarks.harness.results import REPOSITORY


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
