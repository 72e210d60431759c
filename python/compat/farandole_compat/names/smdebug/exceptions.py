# SPDX-License-Identifier: Apache-2.0
"""What trials and rules raise. Where smdebug has several types for a mistake, this has one."""

from farandole import Error as SMDebugError
from farandole import InvalidArgument as InsufficientInformationForRuleInvocation
from farandole import InvalidArgument as InvalidCollectionConfiguration
from farandole import InvalidArgument as InvalidWorker
from farandole import InvalidArgument as MissingCollectionFiles
from farandole import InvalidArgument as SMDebugTypeError
from farandole import InvalidArgument as SMDebugValueError
from farandole import NotSupported as SMDebugNotImplementedError
from farandole.debugger import (
    NoMoreData,
    RuleEvaluationConditionMet,
    StepNotYetAvailable,
    StepUnavailable,
    TensorUnavailable,
    TensorUnavailableForStep,
)
from farandole.debugger import TensorUnavailableForStep as ShapeUnavailableForStep

__all__ = [
    "InsufficientInformationForRuleInvocation",
    "InvalidCollectionConfiguration",
    "InvalidWorker",
    "MissingCollectionFiles",
    "NoMoreData",
    "RuleEvaluationConditionMet",
    "SMDebugError",
    "SMDebugNotImplementedError",
    "SMDebugTypeError",
    "SMDebugValueError",
    "ShapeUnavailableForStep",
    "StepNotYetAvailable",
    "StepUnavailable",
    "TensorUnavailable",
    "TensorUnavailableForStep",
]
