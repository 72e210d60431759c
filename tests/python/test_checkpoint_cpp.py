# SPDX-License-Identifier: Apache-2.0
"""A training that C++ and Python go on with in turns is that of one plain process.

The C++ side is the program tests/programs/resumed_training.cpp.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
from torch import nn, optim
from torch.optim.lr_scheduler import (
    ChainedScheduler,
    ExponentialLR,
    LambdaLR,
    LinearLR,
    MultiStepLR,
    SequentialLR,
)

import ranks

pytestmark = pytest.mark.system

BUILD = Path(__file__).parents[2] / os.environ.get("FARANDOLE_BUILD", "build/release")
PROGRAM = BUILD / "tests" / "resumed_training"
DEADLINE_S = 120

KINDS: dict[str, tuple[Any, dict[str, Any]]] = {
    "SGD": (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    "Adam": (optim.Adam, {"lr": 0.01, "amsgrad": True}),
    "AdamW": (optim.AdamW, {"lr": 0.01, "betas": (0.8, 0.99)}),
    "RMSprop": (optim.RMSprop, {"lr": 0.01, "momentum": 0.5, "centered": True}),
    "Adagrad": (optim.Adagrad, {"lr": 0.1, "lr_decay": 0.01}),
    "LAMB": (farandole.optim.LAMB, {"lr": 0.01}),
    "LARS": (farandole.optim.LARS, {"lr": 0.1}),
}


def network(dtype: torch.dtype, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    first = nn.Linear(16, 8, bias=False)  # a bias would have gradients of rounding errors alone
    return nn.Sequential(first, nn.BatchNorm1d(8), nn.ReLU(), nn.Linear(8, 4)).to(dtype)


def in_groups(net: nn.Module) -> list[dict[str, Any]]:
    parameters = list(net.parameters())
    return [
        {"params": [p for p in parameters if p.dim() != 1]},
        {"params": [p for p in parameters if p.dim() == 1]},
    ]


def parts_of(net: nn.Module, kind: str, how: str) -> dict[str, Any]:
    make, options = KINDS[kind]
    parameters: Any = in_groups(net) if "groups" in how else net.parameters()
    if "plain" in how:
        optimizer = make(parameters, **options)
    else:
        gradients: Any = "shard" if "shard" in how else "full"
        optimizer = farandole.ZeroRedundancyOptimizer(
            parameters, make, gradients=gradients, **options
        )
    scheduler: Any
    if "lambda" in how:
        scheduler = LambdaLR(optimizer, lambda epoch: 1 / (1 + epoch))
    elif "chained" in how:
        parts = [LinearLR(optimizer, 0.25, 1.0, 3), ExponentialLR(optimizer, 0.75)]
        scheduler = ChainedScheduler(parts, optimizer)
    else:
        schedules = [LinearLR(optimizer, 0.25, 1.0, 3), MultiStepLR(optimizer, [2, 4, 4], 0.5)]
        scheduler = SequentialLR(optimizer, schedules, [3])
    return {
        "optimizer": optimizer,
        "scheduler": scheduler,
        "scaler": farandole.GradScaler(init_scale=256, growth_interval=2),
    }


def train(model: nn.Module, parts: dict[str, Any], steps: range, dtype: torch.dtype) -> None:
    for step in steps:
        x = torch.sin(torch.arange(64).reshape(4, 16) * (0.1 + step))
        parts["optimizer"].zero_grad()
        parts["scaler"].scale(model(x.to(dtype)).float().square().mean()).backward()
        parts["scaler"].step(parts["optimizer"])
        parts["scaler"].update()
        parts["scheduler"].step()


def lists_of(net: nn.Module) -> dict[str, Any]:
    return {name: value.tolist() for name, value in net.state_dict().items()}


def train_in_python(
    rank: int, world_size: int, path: str, steps: int, kind: str, how: str
) -> dict[str, Any]:
    """Goes on for some steps, and saves."""
    dtype = torch.bfloat16 if "bf16" in how else torch.float32
    net = network(dtype, 20 + rank)
    model = farandole.DistributedDataParallel(net)
    parts = parts_of(net, kind, how)
    sampler = farandole.data.DistributedSampler(96)
    values = farandole.resume_or_start(path, model=model, sampler=sampler, **parts)
    values = values or {"step": 0, "more": {"loss": [0.5, None], 3: "three"}}
    first = values["step"]
    place = sampler.state_dict(0)["position"]
    train(model, parts, range(first, first + steps), dtype)
    values["step"] = first + steps
    consumed = (first + steps) * 12 // world_size - place // world_size
    farandole.save_checkpoint(
        path,
        model=model,
        sampler=sampler.state_dict(consumed),
        values=values,
        step=first + steps,
        **parts,
    )
    return {
        "values": values,
        "place": place,
        "model": lists_of(net),
        "lr": parts["scheduler"].get_last_lr(),
        "scale": parts["scaler"].get_scale(),
    }


def train_in_cpp(world_size: int, path: str, steps: int, kind: str, how: str) -> str:
    """What rank 0 has printed."""
    program = [str(PROGRAM), path, str(steps), kind, how]
    launch = ["-m", "torch.distributed.run", "--standalone", "--no-python"]
    done = subprocess.run(
        [sys.executable, *launch, "--nproc-per-node", str(world_size), *program],
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.parametrize(
    ("kind", "in_python", "in_cpp"),
    [
        ("SGD", "shard", "full"),
        ("Adam", "full-groups", "plain-groups"),
        ("AdamW", "full", "shard"),
        ("AdamW", "plain-lambda", "full-factory-lambda"),
        ("AdamW", "shard-bf16", "full-bf16"),
        ("RMSprop", "full-chained", "plain-chained"),
        ("Adagrad", "plain", "full"),
        ("LAMB", "full", "shard"),
        ("LARS", "shard-groups", "full-groups"),
    ],
)
def test_languages_take_turns(tmp_path: Path, kind: str, in_python: str, in_cpp: str) -> None:
    path = str(tmp_path / "checkpoints")
    arguments = (path, 3, kind)
    ranks.run(train_in_python, 2, *arguments, in_python)
    printed = train_in_cpp(1, *arguments, in_cpp)
    assert "step 3\n" in printed
    assert "place 36\n" in printed
    printed = train_in_cpp(2, *arguments, in_cpp)
    assert "step 6\n" in printed
    assert "place 72\n" in printed
    result = ranks.run(train_in_python, 2, *arguments, in_python)[0]
    assert result["values"] == {"step": 12, "more": {"loss": [0.5, None], 3: "three"}}

    dtype = torch.bfloat16 if "bf16" in in_python else torch.float32
    torch.set_num_threads(1)
    alone = network(dtype, 20)
    if dtype == torch.float32:
        plain = "plain-" + in_python.replace("full", "").replace("shard", "")
        parts = parts_of(alone, kind, plain)
        train(alone, parts, range(12), dtype)
        assert result["lr"] == parts["scheduler"].get_last_lr()
        assert result["scale"] == parts["scaler"].get_scale()
        wanted = lists_of(alone)
    else:  # masters, which a plain process has not
        wanted = ranks.run(train_in_python, 2, path + "-2", 12, kind, in_python)[0]["model"]
    for name, value in wanted.items():
        found = torch.tensor(result["model"][name])
        torch.testing.assert_close(found, torch.tensor(value), rtol=1e-4, atol=1e-5)
