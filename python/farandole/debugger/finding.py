# SPDX-License-Identifier: Apache-2.0
"""What a rule has found."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any


@dataclass(frozen=True)
class Finding:
    """One fault: in which global step, of which tensor and worker, and what it is."""

    step: int
    text: str
    tensor: str | None = None
    worker: str | None = None

    def __str__(self) -> str:
        """One sentence."""
        tensor = f" '{self.tensor}'" if self.tensor else ""
        worker = f" of {self.worker}" if self.worker else ""
        return f"step {self.step}:{tensor}{worker} {self.text}"

    def to_json(self) -> dict[str, Any]:
        """Its fields."""
        return asdict(self)
