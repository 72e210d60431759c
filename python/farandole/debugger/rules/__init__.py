# SPDX-License-Identifier: Apache-2.0
"""The rules of SageMaker Debugger that look at tensors, by their names, and NonfiniteGradient."""

from farandole.debugger.rules.activations import DeadRelu, SaturatedActivation
from farandole.debugger.rules.classification import ClassImbalance, Confusion
from farandole.debugger.rules.elements import (
    AllZero,
    ExplodingTensor,
    NonfiniteGradient,
    TensorVariance,
    UnchangedTensor,
    VanishingGradient,
)
from farandole.debugger.rules.inputs import CheckInputImages, NLPSequenceRatio
from farandole.debugger.rules.losses import LossNotDecreasing, Overfit, Overtraining
from farandole.debugger.rules.runs import SimilarAcrossRuns, StalledTrainingRule
from farandole.debugger.rules.weights import PoorWeightInitialization, WeightUpdateRatio

__all__ = [
    "AllZero",
    "CheckInputImages",
    "ClassImbalance",
    "Confusion",
    "DeadRelu",
    "ExplodingTensor",
    "LossNotDecreasing",
    "NLPSequenceRatio",
    "NonfiniteGradient",
    "Overfit",
    "Overtraining",
    "PoorWeightInitialization",
    "SaturatedActivation",
    "SimilarAcrossRuns",
    "StalledTrainingRule",
    "TensorVariance",
    "UnchangedTensor",
    "VanishingGradient",
    "WeightUpdateRatio",
]
