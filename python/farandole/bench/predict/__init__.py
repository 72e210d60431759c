# SPDX-License-Identifier: Apache-2.0
"""`farandole bench predict`: how a training step would scale. docs/predict.md explains it.

A step of one rank without communication (``StepRecorder``, ``RecordedStep``) and a model of the
links (``Links``) give, by a simulation of how collectives overlap with computation, the efficiency
on 2 to 1,024 ranks (``predict``) and what would help most (``effects``).
"""

from farandole.bench.predict.advice import effects
from farandole.bench.predict.links import Algorithm, Link, Links
from farandole.bench.predict.links_file import load_links
from farandole.bench.predict.prediction import Conditions, Prediction, draws_of, predict
from farandole.bench.predict.presets import preset
from farandole.bench.predict.recorded_step import (
    Gradient,
    RecordedStep,
    combined,
    joined,
    load_step,
)
from farandole.bench.predict.recording import StepRecorder
from farandole.bench.predict.simulation import Options, StepTimes, Zero, simulate

__all__ = [
    "Algorithm",
    "Conditions",
    "Gradient",
    "Link",
    "Links",
    "Options",
    "Prediction",
    "RecordedStep",
    "StepRecorder",
    "StepTimes",
    "Zero",
    "combined",
    "draws_of",
    "effects",
    "joined",
    "load_links",
    "load_step",
    "predict",
    "preset",
    "simulate",
]
