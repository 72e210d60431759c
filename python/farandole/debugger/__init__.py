# SPDX-License-Identifier: Apache-2.0
"""Tensors of a training: saved while it runs, read back, and checked by rules.

``Hook`` saves, ``create_trial()`` reads, ``farandole.debugger.rules`` has the rules. Names and
defaults are those of SageMaker Debugger. Nothing leaves the machine but what ``Webhook`` sends.
"""

from farandole.debugger.built_in_collections import CollectionKeys
from farandole.debugger.collection import Collection
from farandole.debugger.exceptions import (
    NoMoreData,
    RuleEvaluationConditionMet,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailable,
    TensorUnavailableForStep,
)
from farandole.debugger.finding import Finding
from farandole.debugger.hook import Hook
from farandole.debugger.modes import ModeKeys
from farandole.debugger.modes import ModeKeys as modes  # noqa: N813 (smdebug's name)
from farandole.debugger.reduction_config import ReductionConfig
from farandole.debugger.rule import Rule, invoke_rule
from farandole.debugger.save_config import SaveConfig, SaveConfigMode
from farandole.debugger.saved_value import Counts
from farandole.debugger.step_state import StepState
from farandole.debugger.trial import Trial, create_trial
from farandole.debugger.trial_tensor import Tensor
from farandole.rule_actions import SMS, Action, ActionList, Email, Log, StopTraining, Webhook

__all__ = [
    "SMS",
    "Action",
    "ActionList",
    "Collection",
    "CollectionKeys",
    "Counts",
    "Email",
    "Finding",
    "Hook",
    "Log",
    "ModeKeys",
    "NoMoreData",
    "ReductionConfig",
    "Rule",
    "RuleEvaluationConditionMet",
    "SaveConfig",
    "SaveConfigMode",
    "StepNotYetAvailable",
    "StepState",
    "StepUnavailable",
    "StopTraining",
    "Tensor",
    "TensorUnavailable",
    "TensorUnavailableForStep",
    "Trial",
    "Webhook",
    "create_trial",
    "invoke_rule",
    "modes",
]
