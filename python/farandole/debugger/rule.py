# SPDX-License-Identifier: Apache-2.0
"""Rules: what looks at the steps of a trial for a fault."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from farandole.debugger.exceptions import (
    RuleEvaluationConditionMet,
    StepUnavailable,
    TensorUnavailable,
    TensorUnavailableForStep,
)
from farandole.debugger.finding import Finding
from farandole.debugger.trial import Trial
from farandole.debugger.trial_tensor import Tensor
from farandole.rule_actions import Action, ActionList


class Rule(ABC):
    """Base of all rules.

    One of your own says what to look for in a global step::

        class LargeGradient(Rule):
            def invoke_at_step(self, step):
                for name in self.names(step, collections=["gradients"]):
                    if self.base_trial.tensor(name).reduction_value(step, "max", abs=True) > 100:
                        self.found(step, "is above 100", name)
                return self.has_found(step)

    Threads: one.
    """

    def __init__(
        self,
        base_trial: Trial,
        other_trials: Sequence[Trial] | None = None,
        *,
        actions: Action | Iterable[Action] = (),
    ) -> None:
        """Make it.

        Args:
            base_trial: What it looks at.
            other_trials: What it compares that with.
            actions: What to do when it has found something.
        """
        self.base_trial = base_trial
        self.other_trials = list(other_trials or ())
        self.rule_name = type(self).__name__
        self.findings: list[Finding] = []
        """All that it has found, in the order of steps."""
        self.tensors_judged = 0
        """How many tensors of all steps `names` has given it."""
        self._actions = ActionList(*(actions if isinstance(actions, Iterable) else [actions]))

    @abstractmethod
    def invoke_at_step(self, step: int) -> bool:
        """Whether the global ``step``, which has been written, has the fault."""

    def invoke(self, step: int) -> None:
        """Wait for ``step``, look at it, and run the actions if the fault is there.

        Raises:
            RuleEvaluationConditionMet: it is there.
            StepUnavailable: the step was not saved.
            NoMoreData: the training has ended before.
        """
        self.base_trial.wait_for_steps([step])
        with self.base_trial.no_refresh():
            is_met = self.invoke_at_step(step)
        if is_met:
            self.act(step)

    def act(self, step: int) -> None:
        """Run the actions and raise RuleEvaluationConditionMet."""
        new = [finding for finding in self.findings if finding.step == step]
        self._actions.invoke(self.base_trial, self.rule_name, new)
        raise RuleEvaluationConditionMet(self.rule_name, step, "; ".join(map(str, new)))

    # For invoke_at_step().

    def found(
        self, step: int, text: str, tensor: str | None = None, worker: str | None = None
    ) -> None:
        """Note a fault."""
        self.findings.append(Finding(step, text, tensor, worker))

    def has_found(self, step: int) -> bool:
        """Whether a fault was noted in ``step``."""
        return bool(self.findings) and self.findings[-1].step == step

    def names(
        self,
        step: int,
        *,
        collections: Iterable[str] = (),
        regex: str | Iterable[str] | None = None,
    ) -> list[str]:
        """The tensors of a step in one of ``collections`` or matching ``regex``; all if neither."""
        collections = list(collections)
        names: set[str] = set()
        if not collections and regex is None:
            names.update(self.base_trial.tensor_names(step=step))
        for collection in collections:
            names.update(self.base_trial.tensor_names(step=step, collection=collection))
        if regex is not None:
            names.update(self.base_trial.tensor_names(step=step, regex=regex))
        self.tensors_judged += len(names)
        return sorted(names)

    def each_worker(self, names: Iterable[str], step: int) -> Iterator[tuple[Tensor, str]]:
        """The tensors of ``names``, with each worker that has saved them in ``step``."""
        for name in names:
            tensor = self.base_trial.tensor(name)
            for worker in tensor.workers(step):
                yield tensor, worker

    @property
    def report(self) -> dict[str, Any]:
        """How often it has found something, and what."""
        return {
            "RuleTriggered": len({finding.step for finding in self.findings}),
            "Violations": len(self.findings),
            "Details": [finding.to_json() for finding in self.findings],
        }


def invoke_rule(
    rule: Rule, start_step: int = 0, end_step: int | None = None, raise_eval_cond: bool = False
) -> None:
    """Let a rule look at each step, also while the training goes on.

    Args:
        rule: Its findings are in ``rule.findings`` afterwards.
        start_step: The first global step.
        end_step: Where to end, not included; if None, NoMoreData ends it.
        raise_eval_cond: Whether to end at the first step that has the fault.

    Raises:
        NoMoreData: the training ended before ``end_step``.
        RuleEvaluationConditionMet: the fault was found, and ``raise_eval_cond`` is True.
    """
    step = start_step
    while end_step is None or step < end_step:
        try:
            rule.invoke(step)
        except (StepUnavailable, TensorUnavailable, TensorUnavailableForStep):
            pass  # a step that says nothing about the fault
        except RuleEvaluationConditionMet as found:
            if raise_eval_cond:
                raise
            if found.end_of_rule:
                return
        step += 1
