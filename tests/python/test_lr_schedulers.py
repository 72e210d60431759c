# SPDX-License-Identifier: Apache-2.0
"""Schedulers in C++ have the bits of torch.optim.lr_scheduler, in every step and when resumed.

The program tests/programs/lr_schedules.cpp prints the learning rates of each case; torch's Python
computes them here.
"""

from __future__ import annotations

import os
import random
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import farandole
import pytest
import torch
from torch.optim import lr_scheduler

REPOSITORY = Path(__file__).parents[2]
PROGRAM = REPOSITORY / os.environ.get("FARANDOLE_BUILD", "build/release") / "tests" / "lr_schedules"
DEADLINE_S = 100
STEPS = 1001  # the learning rate of a new scheduler, and those after 1,000 steps

pytestmark = [
    pytest.mark.filterwarnings("ignore:Detected call of .lr_scheduler"),
    pytest.mark.filterwarnings("ignore:The epoch parameter in"),
]

Scheduler = lr_scheduler.LRScheduler
Make = Callable[[torch.optim.Optimizer], Scheduler]


class Schedule(NamedTuple):
    """A scheduler for both languages."""

    words: str
    make: Make


def schedule(name: str, *arguments: object) -> Schedule:
    """Of a class of torch's with arguments in the order of its constructor."""
    words = [name]
    for argument in arguments:
        if isinstance(argument, list):
            words.append(f"{len(argument)}")
        for each in argument if isinstance(argument, list) else [argument]:
            words.append(f"{int(each)}" if isinstance(each, bool) else f"{each!r}")
    kind = getattr(lr_scheduler, name)
    return Schedule(" ".join(words), lambda optimizer: kind(optimizer, *arguments))


def sequential(schedules: list[Schedule], milestones: list[int]) -> Schedule:
    parts = " ".join(each.words for each in schedules)
    bounds = " ".join(map(str, milestones))
    return Schedule(
        f"SequentialLR {len(schedules)} {parts} {len(milestones)} {bounds}",
        lambda optimizer: lr_scheduler.SequentialLR(
            optimizer, [each.make(optimizer) for each in schedules], milestones
        ),
    )


def chained(*schedules: Schedule) -> Schedule:
    parts = " ".join(each.words for each in schedules)
    return Schedule(
        f"ChainedScheduler {len(schedules)} {parts}",
        lambda optimizer: lr_scheduler.ChainedScheduler(
            [each.make(optimizer) for each in schedules], optimizer
        ),
    )


def one_cycle(
    max_lr: list[float],
    total_steps: int,
    pct_start: float = 0.3,
    anneal: str = "cos",
    cycle_momentum: bool = True,
    momenta: tuple[float, float] = (0.85, 0.95),
    divisors: tuple[float, float] = (25.0, 1e4),
    three_phase: bool = False,
) -> Schedule:
    words = [
        f"OneCycleLR {len(max_lr)}",
        *map(repr, max_lr),
        f"{total_steps} {pct_start!r} {int(anneal == 'linear')} {int(cycle_momentum)}",
        *map(repr, momenta),
        *map(repr, divisors),
        f"{int(three_phase)}",
    ]

    def make(optimizer: torch.optim.Optimizer) -> Scheduler:
        return lr_scheduler.OneCycleLR(
            optimizer,
            max_lr,
            total_steps,
            pct_start=pct_start,
            anneal_strategy=anneal,
            cycle_momentum=cycle_momentum,
            base_momentum=momenta[0],
            max_momentum=momenta[1],
            div_factor=divisors[0],
            final_div_factor=divisors[1],
            three_phase=three_phase,
        )

    return Schedule(" ".join(words), make)


def shrinking(rate: float) -> Schedule:
    return Schedule(
        f"LambdaLR {rate!r}",
        lambda optimizer: lr_scheduler.LambdaLR(optimizer, lambda step: 1.0 / (1.0 + rate * step)),
    )


CLASSES = {
    "SGD": torch.optim.SGD,
    "RMSprop": torch.optim.RMSprop,
    "Adam": torch.optim.Adam,
    "AdamW": torch.optim.AdamW,
    "LAMB": farandole.optim.LAMB,
}
LRS = [0.1, 0.0375, 3e-4]


def optimizer_of(kind: str, lrs: list[float]) -> torch.optim.Optimizer:
    groups = [{"params": [torch.zeros(1)], "lr": lr} for lr in lrs]
    return CLASSES[kind](groups, lr=0.1)


def values(optimizer: torch.optim.Optimizer) -> list[float]:
    """Of all groups: learning rates, then momenta."""
    momenta = [
        group["betas"][0] if "betas" in group else group["momentum"]
        for group in optimizer.param_groups
    ]
    return [*(float(group["lr"]) for group in optimizer.param_groups), *momenta]


def torch_values(
    case: Schedule,
    steps: int = STEPS,
    kind: str = "SGD",
    lrs: list[float] = LRS,
    step: Callable[[Scheduler, int], None] = lambda scheduler, _: scheduler.step(),
) -> list[list[float]]:
    optimizer = optimizer_of(kind, lrs)
    scheduler = case.make(optimizer)
    found = []
    for number in range(steps):
        found.append(values(optimizer))
        if number + 1 < steps:
            step(scheduler, number)
    return found


def line(
    case: Schedule,
    steps: int = STEPS,
    kind: str = "SGD",
    lrs: list[float] = LRS,
    resume_at: int = -1,
) -> str:
    numbers = " ".join(map(repr, lrs))
    return f"{kind} {len(lrs)} {numbers} {steps} {resume_at} {case.words}\n"


def cpp_values(lines: list[str], groups: int = len(LRS)) -> list[list[list[float]]]:
    """What the program prints for each line."""
    done = subprocess.run(
        [PROGRAM],
        input="".join(lines),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    width = 2 * groups
    found = []
    for printed in done.stdout.splitlines():
        numbers = [float.fromhex(word) for word in printed.split()]
        found.append([numbers[i : i + width] for i in range(0, len(numbers), width)])
    assert len(found) == len(lines)
    return found


LINEAR = schedule("LinearLR", 0.01, 1.0, 100)
COSINE = schedule("CosineAnnealingLR", 900, 1e-5)
RESTARTS = schedule("CosineAnnealingWarmRestarts", 30, 2, 1e-4)
CASES = {
    "linear": LINEAR,
    "linear decay": schedule("LinearLR", 1.0, 0.0, 777),
    "linear defaults": schedule("LinearLR", 1.0 / 3, 1.0, 5),
    "constant": schedule("ConstantLR", 0.3, 333),
    "constant of none": schedule("ConstantLR", 0.5, 0),
    "step": schedule("StepLR", 30, 0.9),
    "multi step": schedule("MultiStepLR", [10, 10, 200, 777], 0.3),
    "multi step from the beginning": schedule("MultiStepLR", [0, 3], 0.3),
    "exponential": schedule("ExponentialLR", 0.997),
    "lambda": shrinking(0.037),
    "polynomial": schedule("PolynomialLR", 900, 2.0),
    "polynomial root": schedule("PolynomialLR", 1000, 0.9),
    "cosine": schedule("CosineAnnealingLR", 1000, 0.0),
    "cosine that comes back": schedule("CosineAnnealingLR", 37, 1e-3),
    "cosine of one": schedule("CosineAnnealingLR", 1, 1e-3),
    "restarts": RESTARTS,
    "restarts of one length": schedule("CosineAnnealingWarmRestarts", 7, 1, 0.0),
    "one cycle": one_cycle([0.1, 0.2, 0.3], 1000),
    "one cycle, linear": one_cycle([0.1, 0.2, 0.3], 1000, 0.45, "linear"),
    "one cycle of three phases": one_cycle([0.1, 0.2, 0.3], 1000, 0.4, three_phase=True),
    "one cycle without momentum": one_cycle([0.1, 0.2, 0.3], 1001, cycle_momentum=False),
    "one cycle with other numbers": one_cycle(
        [0.1, 0.2, 0.3], 1313, 0.07, momenta=(0.7, 0.99), divisors=(7.0, 11.0)
    ),
    "warm-up, then cosine": sequential([LINEAR, COSINE], [100]),
    "three in sequence": sequential(
        [LINEAR, schedule("ExponentialLR", 0.99), schedule("StepLR", 10, 0.7)], [100, 500]
    ),
    "closed forms": sequential(
        [
            schedule("ConstantLR", 0.2, 50),
            schedule("LinearLR", 0.3, 0.9, 70),
            schedule("PolynomialLR", 100, 1.5),
            schedule("MultiStepLR", [0, 20], 0.5),
            schedule("ConstantLR", 0.4, 30),
            shrinking(0.01),
            RESTARTS,
        ],
        [60, 150, 260, 300, 350, 500],
    ),
    "one cycle at last": sequential([LINEAR, one_cycle([0.1, 0.2, 0.3], 950)], [100]),
    "one cycle at first": sequential([one_cycle([0.1, 0.2, 0.3], 99), COSINE], [100]),
    "restarts at first": sequential([RESTARTS, schedule("StepLR", 100, 0.5)], [200]),
    "one alone in sequence": sequential([COSINE], []),
    "chained": chained(schedule("ConstantLR", 0.1, 20), schedule("ExponentialLR", 0.999)),
    "chained warm-up and cosine": chained(LINEAR, COSINE),
    "chained sequence": chained(sequential([LINEAR, COSINE], [100]), schedule("StepLR", 90, 0.8)),
    "sequence that begins with a chain": sequential(
        [chained(schedule("ConstantLR", 0.1, 20), schedule("ExponentialLR", 0.9)), COSINE], [50]
    ),
    "sequence in a sequence": sequential([sequential([LINEAR, COSINE], [100]), RESTARTS], [300]),
}


@pytest.mark.system
def test_every_step_has_the_bits_of_torch() -> None:
    found = cpp_values([line(case) for case in CASES.values()])
    for (name, case), rates in zip(CASES.items(), found, strict=True):
        assert rates == torch_values(case), name


@pytest.mark.system
@pytest.mark.parametrize("kind", CLASSES)
def test_one_cycle_cycles_momentum_and_beta1(kind: str) -> None:
    case = CASES["one cycle"]
    (rates,) = cpp_values([line(case, kind=kind)])
    assert rates == torch_values(case, kind=kind)
    assert len({momentum for *_, momentum in rates}) > 500


@pytest.mark.system
def test_resumed_schedules_go_on_with_the_same_bits() -> None:
    draw = random.Random(3)
    resumed = [
        (name, draw.choice([0, 1, 2, 99, 100, 101, draw.randrange(STEPS)]))
        for name in CASES
        for _ in range(3)
    ]
    lines = [line(CASES[name], resume_at=at) for name, at in resumed]
    for (name, at), rates in zip(resumed, cpp_values(lines), strict=True):
        assert rates == torch_values(CASES[name]), (name, at)


def drawn_schedule(draw: random.Random) -> Schedule:
    """Any scheduler that may be part of another one, with any arguments."""
    steps = draw.randint(1, 300)
    return draw.choice(
        [
            schedule("LinearLR", draw.uniform(0.001, 1), draw.random(), steps),
            schedule("ConstantLR", draw.uniform(0.001, 1), steps),
            schedule("StepLR", steps, draw.uniform(0.1, 1)),
            schedule("MultiStepLR", sorted(draw.choices(range(400), k=4)), draw.uniform(0.1, 1.1)),
            schedule("ExponentialLR", draw.uniform(0.9, 1.01)),
            shrinking(draw.random()),
            schedule("PolynomialLR", steps, draw.uniform(0, 3)),
            schedule("CosineAnnealingLR", steps, draw.uniform(0, 0.01)),
            schedule("CosineAnnealingWarmRestarts", steps, draw.randint(1, 3), draw.random()),
            one_cycle(
                [draw.random() for _ in LRS],
                draw.randint(STEPS, 2 * STEPS),
                draw.uniform(0.01, 0.49),
                draw.choice(["cos", "linear"]),
                three_phase=draw.random() < 0.5,
            ),
        ]
    )


def drawn_case(draw: random.Random) -> Schedule:
    parts = [drawn_schedule(draw) for _ in range(draw.randint(1, 4))]
    if len([part for part in parts if "OneCycle" in part.words]) > 1:  # share values in torch
        return drawn_case(draw)
    if draw.random() < 0.3:
        return chained(*parts)
    milestones = sorted(draw.sample(range(1, 600), len(parts) - 1))
    return sequential(parts, milestones)


@pytest.mark.system
def test_any_combination_has_the_bits_of_torch() -> None:
    draw = random.Random(5)
    cases = [drawn_case(draw) for _ in range(150)]
    at = [draw.choice([-1, draw.randrange(STEPS)]) for _ in cases]
    lines = [line(case, resume_at=each) for case, each in zip(cases, at, strict=True)]
    for case, each, rates in zip(cases, at, cpp_values(lines), strict=True):
        assert rates == torch_values(case), (case.words, each)


@pytest.mark.system
@pytest.mark.parametrize("mode", ["min", "max"])
@pytest.mark.parametrize("threshold_mode", ["rel", "abs"])
def test_plateaus_have_the_bits_of_torch(mode: str, threshold_mode: str) -> None:
    draw = random.Random(7)
    lines, cases = [], []
    for resume_at in (-1, 1, 500):
        factor, threshold, least = draw.uniform(0.3, 0.9), draw.uniform(0, 0.1), [1e-4, 0.0, 1e-5]
        patience, cooldown, eps = draw.randint(0, 20), draw.randint(0, 9), 1e-8
        metrics = [draw.gauss(0, 1) for _ in range(STEPS)]
        words = [
            f"ReduceLROnPlateau {int(mode == 'max')} {factor!r} {patience} {threshold!r}",
            f"{int(threshold_mode == 'abs')} {cooldown} {len(least)}",
            *map(repr, least),
            f"{eps!r} {STEPS}",
            *map(repr, metrics),
        ]
        case = Schedule(
            " ".join(words),
            lambda optimizer, arguments=(factor, patience, threshold, cooldown, least, eps): (
                lr_scheduler.ReduceLROnPlateau(
                    optimizer, mode, *arguments[:3], threshold_mode, *arguments[3:]
                )
            ),
        )
        lines.append(line(case, resume_at=resume_at))
        cases.append(
            torch_values(case, step=lambda scheduler, i, of=metrics: scheduler.step(of[i]))
        )
    assert cpp_values(lines) == cases
    assert all(len({rates[1] for rates in case}) > 3 for case in cases)


@pytest.mark.system
@pytest.mark.parametrize(("first", "growth"), [(10, 1), (7, 2), (5, 3)])
def test_restarts_take_fractions_of_epochs(first: int, growth: int) -> None:
    words = f"fractions {first} {growth} 0.001 0.03125"
    case = Schedule(
        words,
        lambda optimizer: lr_scheduler.CosineAnnealingWarmRestarts(optimizer, first, growth, 0.001),
    )
    expected = torch_values(case, step=lambda scheduler, i: scheduler.step(i * 0.03125))
    lines = [line(case), line(case, resume_at=400)]
    assert cpp_values(lines) == [expected, expected]


def test_linear_scaling_is_the_same_in_python() -> None:
    assert farandole.optim.linear_scaled_lr(0.1, 8192) == 0.1 * 8192 / 256
    assert farandole.optim.linear_scaled_lr(0.1, 64, 32) == 0.2
    with pytest.raises(farandole.InvalidArgument, match="got global_batch_size 0"):
        farandole.optim.linear_scaled_lr(0.1, 0)
