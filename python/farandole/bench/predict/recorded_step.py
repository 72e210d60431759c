# SPDX-License-Identifier: Apache-2.0
"""A training step of one rank without communication, as a file: see docs/predict.md."""

from __future__ import annotations

import itertools
import json
import math
import statistics
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from farandole.errors import InvalidArgument, sentences
from farandole.foreign_text import json_of

FORMAT = "farandole-step-1"


@dataclass(frozen=True)
class Gradient:
    """Of one parameter."""

    bytes: int
    dtype: str
    """As torch names it: "float32", "bfloat16"."""
    ready_ms: float
    """Since the step began; the median of all recorded steps."""


@dataclass(frozen=True)
class RecordedStep:
    """Medians of some steps: forward, backward, the optimizer, and what is beside them."""

    name: str
    device: str
    gradients: tuple[Gradient, ...]
    """In the order in which they are ready; backward ends with the last one."""
    forward_ms: float
    """From the begin of the step to the end of the model's forward."""
    optimizer_ms: float
    """Of the optimizer's step()."""
    other_ms: float
    """After the last gradient, beside the optimizer: clipping, logging."""
    steps_ms: tuple[tuple[float, ...], ...]
    """Of each rank that recorded at the same time, each step; jitter is computed from it."""
    buffer_bytes: int = 0
    """Of the model's buffers, which rank 0 broadcasts before each forward."""

    @property
    def backward_end_ms(self) -> float:
        """Since the step began."""
        return self.gradients[-1].ready_ms

    @property
    def step_ms(self) -> float:
        """Of a step without communication."""
        return self.backward_end_ms + self.other_ms + self.optimizer_ms

    @property
    def gradient_bytes(self) -> int:
        """Of all parameters."""
        return sum(gradient.bytes for gradient in self.gradients)

    def jitter(self) -> float:
        """By how much ranks differ: the standard deviation of log(step) of a rank.

        Of several ranks that recorded at once it is what they differ by in the same step: what
        slows all of them down slows the steps without communication, too. It is taken from the
        middle 80 % of the steps: one garbage collection in a hundred steps is no noise of all
        steps. 0 for less than 5 steps.
        """
        ranks = [[math.log(each) for each in steps] for steps in self.steps_ms]
        if len(ranks[0]) < 5:
            return 0.0
        if len(ranks) == 1:
            return _deviation(ranks[0])
        means = [statistics.fmean(each) for each in zip(*ranks, strict=True)]
        apart = [one - mean for steps in ranks for one, mean in zip(steps, means, strict=True)]
        return _deviation(apart) * math.sqrt(len(ranks) / (len(ranks) - 1))

    def save(self, path: str | Path) -> None:
        """Writes it as JSON, a gradient a line."""
        fields = {"format": FORMAT, **asdict(self)}
        lines = ",\n  ".join(json.dumps(each) for each in fields.pop("gradients"))
        head = json.dumps(fields, indent=1).removesuffix("\n}")
        Path(path).write_text(f'{head},\n "gradients": [\n  {lines}\n ]\n}}\n')


def load_step(path: str | Path) -> RecordedStep:
    """Reads what save() has written.

    Raises:
        InvalidArgument: the file is not such a step.
    """
    try:
        return _step_of(json_of(Path(path).read_bytes()))
    except (OSError, ArithmeticError, ValueError, KeyError, TypeError) as error:
        raise InvalidArgument(
            sentences(
                "predict-step-file",
                f"'{path}' is no recorded step.",
                f"it must be JSON of the format {FORMAT}: {type(error).__name__}: {error}.",
                "record one with farandole bench predict --record; docs/predict.md has the format.",
            )
        ) from error


def combined(ranks: Sequence[RecordedStep]) -> RecordedStep:
    """One step of several ranks that recorded the same model at the same time: medians."""
    steps_ms = tuple(steps for rank in ranks for steps in rank.steps_ms)
    return replace(_medians(ranks), steps_ms=steps_ms)


def joined(parts: Sequence[RecordedStep]) -> RecordedStep:
    """One step of what the same ranks recorded one after the other: medians."""
    by_rank = zip(*(part.steps_ms for part in parts), strict=True)
    steps_ms = tuple(tuple(each for steps in rank for each in steps) for rank in by_rank)
    return replace(_medians(parts), steps_ms=steps_ms)


def _medians(steps: Sequence[RecordedStep]) -> RecordedStep:
    """Gradients are in the order of the first one."""
    ready = zip(*map(_ready_by_place, steps), strict=True)
    gradients = zip(steps[0].gradients, map(statistics.median, ready), strict=True)
    names = ("forward_ms", "optimizer_ms", "other_ms")
    medians = {name: statistics.median(getattr(step, name) for step in steps) for name in names}
    return replace(
        steps[0],
        gradients=tuple(replace(gradient, ready_ms=each) for gradient, each in gradients),
        **medians,
    )


def _deviation(values: Sequence[float]) -> float:
    """Standard deviation of normal values with the same 10th and 90th percentiles."""
    cut = statistics.quantiles(values, n=10)
    return (cut[-1] - cut[0]) / (2 * statistics.NormalDist().inv_cdf(0.9))


def _ready_by_place(step: RecordedStep) -> list[float]:
    return [gradient.ready_ms for gradient in step.gradients]


def _step_of(read: Any) -> RecordedStep:
    """Checks what other programs may have written."""
    if not isinstance(read, dict):
        raise TypeError("it is no object")
    if read.pop("format") != FORMAT:
        raise ValueError("another format")
    gradients = tuple(Gradient(**each) for each in read.pop("gradients"))
    steps_ms = tuple(tuple(map(float, rank)) for rank in read.pop("steps_ms"))
    step = RecordedStep(**read, gradients=gradients, steps_ms=steps_ms)
    numbers = [step.forward_ms, step.optimizer_ms, step.other_ms, step.buffer_bytes]
    numbers += [each.ready_ms for each in gradients]
    if not gradients or min(numbers) < 0 or not all(map(math.isfinite, numbers)):
        raise ValueError("gradients are missing, or a number is below 0")
    above_zero = [each.bytes for each in gradients] + [each for rank in steps_ms for each in rank]
    if not steps_ms or not all(each > 0 and math.isfinite(each) for each in above_zero):
        raise ValueError("bytes and steps_ms must be above 0")
    if len({len(rank) for rank in steps_ms}) > 1:
        raise ValueError("steps_ms must have as many steps of each rank")
    if not all(isinstance(each.dtype, str) for each in gradients):
        raise ValueError("dtype must be a name")
    if step.step_ms <= 0:
        raise ValueError("a step must take longer than 0")
    if any(b.ready_ms < a.ready_ms for a, b in itertools.pairwise(gradients)):
        raise ValueError("gradients must be in the order of ready_ms")
    return step
