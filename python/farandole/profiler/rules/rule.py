# SPDX-License-Identifier: Apache-2.0
"""What all rules have in common: parameters, and a report that can be written as JSON."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass, field, fields
from typing import Any

from farandole.errors import InvalidArgument, sentences
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
    """Judges a profile. Parameters are fields, by SageMaker's names and with its defaults.

    Raises:
        InvalidArgument: a parameter is no number, or a count is negative.
    """

    scan_interval_us: int = 60_000_000
    """Of a running job: how often it is looked at."""

    def __post_init__(self) -> None:
        """Check parameters now, and not in the middle of a run."""
        for each in fields(self):
            if not _can_be(each.type, each.name, value := getattr(self, each.name)):
                raise _no_parameter(self.name, each.name, value)

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


def _can_be(kind: Any, name: str, value: Any) -> bool:
    """Whether a field of this type may have this value; those of other types may have any."""
    if kind in ("int", int):
        is_whole = isinstance(value, int) and not isinstance(value, bool)
        return is_whole and value >= (1 if name == "window" else 0)
    if kind in ("float", float):
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        return is_number and math.isfinite(value)
    return True


def _no_parameter(rule: str, name: str, value: Any) -> InvalidArgument:
    return InvalidArgument(
        sentences(
            "profiler-rule-value",
            f"the rule {rule} got {name}={value!r}.",
            "thresholds are numbers, and counts are whole numbers that are not negative.",
            f"help(farandole.profiler.{rule}) lists its parameters and defaults.",
        )
    )
