# SPDX-License-Identifier: Apache-2.0
"""The rules of the debugger on the tensors of a run, reported as those of the profiler are."""

from __future__ import annotations

from collections import Counter

from farandole.debugger import rules
from farandole.debugger.rule import Rule
from farandole.debugger.trial import Trial
from farandole.errors import Error
from farandole.profiler.rules.rule import RuleReport

RULES: dict[type[Rule], tuple[str, str]] = {
    rules.NonfiniteGradient: (
        "gradients",
        "look at the first tensor that has one; lower the learning rate, clip gradients, or use a "
        "GradScaler with float16.",
    ),
    rules.ExplodingTensor: (
        "any tensors",
        "look at the first tensor that has one: a division by zero, the logarithm of zero, or too "
        "high a learning rate.",
    ),
    rules.LossNotDecreasing: (
        "losses",
        "look at the learning rate, at whether labels belong to their samples, and at whether the "
        "optimizer has all parameters.",
    ),
    rules.Overfit: (
        "losses of the modes TRAIN and EVAL",
        "use more data, augmentation, weight decay or dropout, or a smaller model; stop earlier.",
    ),
    rules.Overtraining: (
        "losses of the modes TRAIN and EVAL",
        "stop here, or lower the learning rate: neither loss improves.",
    ),
    rules.VanishingGradient: (
        "gradients",
        "use another activation or initialization, normalization or residual connections.",
    ),
    rules.PoorWeightInitialization: (
        "weights and gradients",
        "initialize the weights by the size of their layers, as torch.nn.init does.",
    ),
    rules.WeightUpdateRatio: (
        "weights, with all elements",
        "weights that jump need a lower learning rate; those that stand still a higher one, or "
        "they are frozen.",
    ),
    rules.UnchangedTensor: (
        "any tensors in three steps",
        "look at whether the optimizer has these parameters, and whether gradients reach them.",
    ),
    rules.AllZero: (
        "any tensors",
        "look at what these tensors are made of: dead activations, masks, an unused part.",
    ),
    rules.DeadRelu: (
        "relu_output, with all elements",
        "lower the learning rate, or use LeakyReLU or GELU.",
    ),
    rules.SaturatedActivation: (
        "tanh_input or sigmoid_input, with all elements",
        "normalize what goes into these layers, or start with smaller weights.",
    ),
    rules.ClassImbalance: (
        "inputs of CrossEntropyLoss of 500 samples, with all elements",
        "sample rare classes more often, or weight the loss of each class.",
    ),
    rules.Confusion: (
        "labels and predictions, with all elements",
        "look at the classes that are taken for each other: their labels, and how many there are.",
    ),
    rules.NLPSequenceRatio: (
        "embedding_input, with all elements",
        "pad less: DistributedBucketBatchSampler makes batches of similar lengths.",
    ),
}
"""With what each needs and what to do if it fires. The others need arguments, or a training that
goes on; and CheckInputImages fires where inputs are no images."""

_MOST_TENSORS = 20
"""That the figures name."""


def reports_of(trial: Trial) -> list[RuleReport]:
    """Of the rules that need no arguments, on all steps that were saved until now."""
    return [_report(trial, kind, *RULES[kind]) for kind in RULES]


def _report(trial: Trial, kind: type[Rule], needs: str, advice: str) -> RuleReport:
    rule = kind(trial)
    with trial.no_refresh():
        looks = [_look(rule, step) for step in trial.steps()]
    found = rule.findings
    judged = sum(count or 0 for count in looks)
    if not found:
        has_data = sum(map(bool, looks)) > looks.count(None)
        what = "no saved step has the fault." if has_data else f"it takes {needs}: not saved."
        return RuleReport(rule.rule_name, False, has_data, what, "", 0, judged, {})
    steps = sorted({finding.step for finding in found})
    tensors = Counter(finding.tensor or "" for finding in found)
    what = f"{found[0]}."
    if len(found) > 1:
        what += f" It was found {len(found)} times, the last time in step {steps[-1]}."
    figures = {
        "first_step": steps[0],
        "last_step": steps[-1],
        "steps": len(steps),
        "times": dict(tensors.most_common(_MOST_TENSORS)),
    }
    return RuleReport(rule.rule_name, True, True, what, advice, len(found), judged, {}, figures)


def _look(rule: Rule, step: int) -> int | None:
    """At how many tensors; None if they lack what it needs."""
    before = rule.tensors_judged
    try:
        rule.invoke_at_step(step)
    except Error:
        return None
    return rule.tensors_judged - before
