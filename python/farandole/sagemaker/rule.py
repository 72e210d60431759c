# SPDX-License-Identifier: Apache-2.0
"""Rules as smdebug has them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farandole import debugger
from farandole.debugger.trial import Trial
from farandole.logs import LOGGER
from farandole.rule_actions import actions_of_json
from farandole.sagemaker.required_tensors import RequiredTensors


class Rule(debugger.Rule):
    """Base of rules that were written for smdebug: actions are JSON, and tensors are announced.

    set_required_tensors() is called before invoke_at_step(); the steps that it asks for have been
    written then. ``report`` belongs to the rule.
    """

    report: Any = None
    logger = LOGGER

    def __init__(
        self,
        base_trial: Trial,
        action_str: str | None = None,
        other_trials: Sequence[Trial] | None = None,
    ) -> None:
        """Look at a trial.

        Args:
            base_trial: What it looks at.
            action_str: JSON of an action or a list of them, as
                ``[{"name": "stoptraining", "training_job_prefix": "run"}]``.
            other_trials: What it compares that with.

        Raises:
            InvalidArgument: ``action_str`` is no such JSON.
            NotSupported: it has an email or sms.
        """
        super().__init__(base_trial, other_trials, actions=actions_of_json(action_str or ""))
        self.trials = [base_trial, *self.other_trials]
        self.req_tensors = RequiredTensors(base_trial, self.other_trials)
        self.report = {
            "RuleTriggered": 0,
            "Violations": 0,
            "Details": {},
            "Datapoints": 0,
            "RuleParameters": "",
        }

    def set_required_tensors(self, step: int) -> None:
        """Say what invoke_at_step() will look at, by ``self.req_tensors.add()``."""

    def invoke(self, step: int) -> None:
        """As farandole.debugger.Rule's, after set_required_tensors()."""
        self.base_trial.wait_for_steps([step])
        self.req_tensors.clear()
        self.set_required_tensors(step)
        self.req_tensors.fetch()
        super().invoke(step)


def invoke_rule(
    rule_obj: debugger.Rule,
    start_step: int | None = 0,
    end_step: int | None = None,
    raise_eval_cond: bool = False,
) -> None:
    """farandole.debugger.invoke_rule() by smdebug's names."""
    debugger.invoke_rule(rule_obj, start_step or 0, end_step, raise_eval_cond)
