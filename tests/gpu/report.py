# SPDX-License-Identifier: Apache-2.0
"""What `make gpu-check` has found: one JSON file and a text.

The file has `schema` (1), `commit`, `date`, `machine` (GPU, how many, driver, CUDA, NCCL, torch,
Python), `seconds`, `verdict` ("passed" or "failed"), `counts` by status, `worlds` (which ranks can
form a group, and why others cannot), `checks` (stage, name, status, reason, seconds), and `figures`
of benchmarks/gpu (benchmarks/gpu/figure.py).
"""

from __future__ import annotations

import json
import re
import tempfile
from collections import Counter
from dataclasses import asdict, dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from benchmarks.gpu.figure import HEADS, Figure
from benchmarks.harness.commit import commit
from benchmarks.harness.tables import columns

STATUSES = ["passed", "failed", "left out"]
LAST_LINES = 15  # of what failed


@dataclass
class Check:
    """One thing that was looked at. `reason` says why it has failed or was left out."""

    stage: str
    name: str
    status: str
    reason: str = ""
    seconds: float = 0.0


@dataclass
class Report:
    """Grows while stages run."""

    machine: dict[str, Any]
    checks: list[Check] = field(default_factory=list)
    figures: list[Figure] = field(default_factory=list)
    seconds: float = 0.0

    @property
    def has_failed(self) -> bool:
        counts = self.counts()
        return counts["failed"] > 0 or counts["passed"] == 0

    def counts(self) -> dict[str, int]:
        found = Counter(check.status for check in self.checks)
        return {status: found[status] for status in STATUSES}

    def worlds(self) -> dict[str, str]:
        """Such as "2-ranks-on-one-GPU-by-NCCL_HOSTID": "works"."""
        found = {}
        for check in self.checks:
            test, _, world = check.name.partition("[")
            if test == "test_ranks_form_a_group":
                works = check.status == "passed"
                found[world[:-1]] = "works" if works else f"{check.status}: {check.reason}"
        return found

    def json(self) -> str:
        content = {
            "schema": 1,
            "commit": commit(),
            "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
            "machine": self.machine,
            "seconds": round(self.seconds, 1),
            "verdict": "failed" if self.has_failed else "passed",
            "counts": self.counts(),
            "worlds": self.worlds(),
            "checks": [{**asdict(each), "seconds": round(each.seconds, 3)} for each in self.checks],
            "figures": [each.row() for each in self.figures],
        }
        return json.dumps(content, indent=1) + "\n"

    def write(self, path: Path) -> Path:
        """Where it is now: at `path`, or where this process may write."""
        try:
            path.write_text(self.json())
        except OSError as error:
            with tempfile.NamedTemporaryFile(
                "w", prefix=path.stem + "-", suffix=".json", delete=False
            ) as file:
                file.write(self.json())
            print(f"{path} cannot be written ({error.strerror}); the report is elsewhere:")
            return Path(file.name)
        return path

    def text(self) -> str:
        """For who started it."""
        worlds = [f"{name}: {one_line(state)[-200:]}" for name, state in self.worlds().items()]
        parts = [self.table(), "\n".join(worlds), self.what_was_left_out(), self.what_failed()]
        if self.figures:
            parts.append(columns([HEADS, *(each.line() for each in self.figures)]))
        counts = ", ".join(f"{count} {status}" for status, count in self.counts().items())
        verdict = "FAILED" if self.has_failed else "passed"
        parts.append(f"{verdict}: {counts}, in {self.seconds:.0f} s")
        return "\n\n".join(part for part in parts if part)

    def table(self) -> str:
        lines = [["stage", *STATUSES, "seconds"]]
        for stage in dict.fromkeys(check.stage for check in self.checks):
            own = [check for check in self.checks if check.stage == stage]
            counts = Counter(check.status for check in own)
            seconds = f"{sum(check.seconds for check in own):.1f}"
            lines.append([stage, *(str(counts[status]) for status in STATUSES), seconds])
        return columns(lines)

    def what_was_left_out(self) -> str:
        reasons = Counter(
            (check.stage, check.reason) for check in self.checks if check.status == "left out"
        )
        lines = [
            f"left out: {stage}, {count} check{'s' * (count > 1)}: {one_line(reason)}"
            for (stage, reason), count in reasons.items()
        ]
        return "\n".join(lines)

    def what_failed(self) -> str:
        """Checks that have failed the same way together."""
        names: dict[tuple[str, str], list[str]] = {}
        for check in self.checks:
            if check.status == "failed":
                names.setdefault((check.stage, last_lines(check.reason)), []).append(check.name)
        return "\n\n".join(
            f"FAILED: {stage}: {found[0]}{f' and {len(found) - 1} more' * (len(found) > 1)}\n{why}"
            for (stage, why), found in names.items()
        )


def one_line(text: str) -> str:
    return " ".join(text.split())


def last_lines(text: str) -> str:
    lines = [line for line in text.splitlines() if line.strip()]
    return "\n".join(f"  {line}" for line in lines[-LAST_LINES:])


def file_name(gpu: str) -> str:
    """Of the report on a machine with such GPUs, whatever is in their name."""
    name = re.sub(r"[^A-Za-z0-9.]+", "-", gpu).strip("-.")
    return f"gpu-check-{name or 'unknown'}.json"
