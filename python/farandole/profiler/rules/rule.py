# SPDX-License-Identifier: Apache-2.0
"""What all rules have in common: parameters, and a report that can be written as JSON."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field
from typing import Any

from farandole.profiler.profile import Profile


@dataclass(frozen=True)
class RuleReport:
    """What a rule has found."""

    rule: str
    fired: bool
    has_data: bool
    """Whether there was enough to judge by; ``what`` says what is missing."""
    what: str
    """One sentence for people."""
    advice: str
    """What to do; empty unless it fired."""
    triggered: int
    """How often the condition held, each GPU, rank or host counted."""
    datapoints: int
    """How many values were judged."""
    parameters: dict[str, Any]
    figures: dict[str, Any] = field(default_factory=dict)

    @property
    def step(self) -> None:
        """It is of a whole run, not of one step as those of the debugger."""

    def __str__(self) -> str:
        """What was found, and what to do."""
        return f"{self.what} {self.advice}".rstrip()

    def to_json(self) -> dict[str, Any]:
        """Plain values for json.dumps()."""
        return asdict(self)


@dataclass(frozen=True, kw_only=True)
class ProfilerRule(ABC):
    """Judges a profile. Parameters are fields, by SageMaker's names and with its defaults."""

    scan_interval_us: int = 60_000_000
    """Of a running job: how often it is looked at."""

    @property
    def name(self) -> str:
        """As in reports."""
        return type(self).__name__

    @abstractmethod
    def evaluate(self, profile: Profile) -> RuleReport:
        """Judge all that was recorded until now."""

    def _fired(
        self, what: str, advice: str, *, triggered: int, datapoints: int, figures: dict[str, Any]
    ) -> RuleReport:
        parameters = self._parameters()
        return RuleReport(
            self.name, True, True, what, advice, triggered, datapoints, parameters, figures
        )

    def _quiet(self, what: str, *, datapoints: int, figures: dict[str, Any]) -> RuleReport:
        parameters = self._parameters()
        return RuleReport(self.name, False, True, what, "", 0, datapoints, parameters, figures)

    def _no_data(self, what: str, *, datapoints: int = 0) -> RuleReport:
        parameters = self._parameters()
        return RuleReport(self.name, False, False, what, "", 0, datapoints, parameters)

    def _parameters(self) -> dict[str, Any]:
        """As reports show them."""
        return asdict(self)
