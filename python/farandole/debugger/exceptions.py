# SPDX-License-Identifier: Apache-2.0
"""What reading a trial and running a rule raise."""

from __future__ import annotations

from farandole.debugger.modes import ModeKeys
from farandole.errors import Error


class _OfStep(Error):
    """Something about one step."""

    def __init__(self, text: str, *, step: int, mode: ModeKeys) -> None:
        super().__init__(text)
        self.step = step
        self.mode = mode


class StepUnavailable(_OfStep):
    """The step was not saved, and will not be."""


class StepNotYetAvailable(_OfStep):
    """The training has not reached the step."""


class NoMoreData(_OfStep):
    """The training has ended before the step."""


class TensorUnavailable(Error):
    """The tensor was not saved in any step so far."""


class TensorUnavailableForStep(_OfStep):
    """The tensor, or what was asked of it, was not saved in the step."""


class RuleEvaluationConditionMet(Error):
    """What a rule looks for is there; the text has the findings."""

    def __init__(
        self, rule_name: str, step: int, findings: str = "", *, end_of_rule: bool = False
    ) -> None:
        super().__init__(f"{rule_name} at step {step}: {findings or 'its condition is met'}")
        self.rule_name = rule_name
        self.step = step
        self.end_of_rule = end_of_rule
