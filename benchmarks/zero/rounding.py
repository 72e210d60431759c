# SPDX-License-Identifier: Apache-2.0
"""How far equal trainings drift apart by rounding alone: sharded AdamW, Farandole's and torch's.

    python -m benchmarks.zero.rounding           # two ranks, a few minutes
    python -m benchmarks.zero.rounding --quick   # does it work?

Every lane trains the same residual network on the same batches, with Farandole's
DistributedDataParallel, so that gradients of equal parameters have equal bits; the optimizer alone
differs. `nudged` is torch's foreach loops again, where the first weights began one unit in their
last place higher: what it drifts is what the training itself makes of rounding.

Prints, for each type of the parameters, the largest difference of a step's loss from torch's
foreach loops, and writes zero_rounding.jsonl into build/benchmarks.
"""

import argparse
import tempfile
from collections.abc import Callable
from typing import Any, cast

import farandole
import torch
from farandole.bench.models.resnet import resnet
from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZero
from torch.multiprocessing.spawn import spawn
from torch.nn import functional

from benchmarks.harness.results import Row
from benchmarks.harness.script import Report, new_parser, parse

RANKS = 2
CLASSES = 10
LANES: dict[str, tuple[Callable[..., torch.optim.Optimizer], dict[str, Any]]] = {
    "torch_foreach": (TorchZero, {"foreach": True}),
    "torch_foreach_nudged": (TorchZero, {"foreach": True}),
    "torch_fused": (TorchZero, {"fused": True}),
    "ours_full": (farandole.ZeroRedundancyOptimizer, {"gradients": "full"}),
    "ours_shard": (farandole.ZeroRedundancyOptimizer, {"gradients": "shard"}),
}


def train(name: str, dtype: torch.dtype, quick: bool, rank: int) -> list[float]:
    """The mean loss of all ranks, by step: two epochs of noisy images of ten classes."""
    torch.manual_seed(0)
    model = resnet(8, [1, 1, 1, 1]) if quick else resnet(32, [2, 2, 2, 2])
    *_, last = model.children()
    model[-1] = torch.nn.Linear(cast(torch.nn.Linear, last).in_features, CLASSES)
    model = model.to(dtype)
    if name.endswith("nudged"):
        with torch.no_grad():
            weight = next(model.parameters())
            weight.copy_(torch.nextafter(weight, weight + 1))
    steps, images = (3, 4) if quick else (48, 8)
    generator = torch.Generator().manual_seed(rank)
    patterns = torch.randn(CLASSES, 3, 64, 64, generator=torch.Generator().manual_seed(99))
    data = []
    for _ in range(steps):
        classes = torch.randint(CLASSES, (images,), generator=generator)
        noise = torch.randn(images, 3, 64, 64, generator=generator)
        data.append(((patterns[classes] + noise).to(dtype), classes))
    ddp = farandole.DistributedDataParallel(model)
    sharded, options = LANES[name]
    options = {"lr": 1e-3, "weight_decay": 0.05, **options}
    optimizer = sharded(ddp.parameters(), torch.optim.AdamW, **options)
    losses = []
    for inputs, classes in data * 2:
        optimizer.zero_grad()
        loss = functional.cross_entropy(ddp(inputs), classes)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        losses.append(loss.detach().double())
    everyone = torch.stack(losses)
    farandole.all_reduce(everyone)
    return (everyone / RANKS).tolist()


def drift_of(losses: list[float], reference: list[float]) -> dict[str, float]:
    """How far a lane's losses are from torch's foreach loops'."""
    apart = [abs(own - other) for own, other in zip(losses, reference, strict=True)]
    return {
        "first_epoch": max(apart[: len(apart) // 2]),
        "second_epoch": max(apart[len(apart) // 2 :]),
        "last_loss": losses[-1],
    }


def table(rows: list[Row]) -> str:
    """One line a lane and type."""
    return "\n".join(
        f"{row['dtype']:8} {row['lane']:21} first epoch {row['first_epoch']:.1e}, "
        f"second {row['second_epoch']:.1e}; last loss {row['last_loss']:.4f}"
        for row in rows
    )


def run_rank(rank: int, address: str, arguments: argparse.Namespace) -> None:
    """One of the ranks; the first one writes."""
    torch.set_num_threads(1)
    farandole.init_process_group(init_method=address, rank=rank, world_size=RANKS)
    rows = []
    for dtype in (torch.float32, torch.float64):
        losses = {name: train(name, dtype, arguments.quick, rank) for name in LANES}
        for name in LANES:
            row = {"lane": name, "dtype": str(dtype).removeprefix("torch."), "ranks": RANKS}
            rows.append({**row, **drift_of(losses[name], losses["torch_foreach"])})
    farandole.destroy()
    if rank == 0:
        Report("zero_rounding.jsonl", table).make(arguments, [rows])


def main() -> None:
    """Starts the ranks."""
    arguments = parse(new_parser(__doc__, "a tiny network, six steps"))
    with tempfile.TemporaryDirectory() as folder:
        address = f"file://{folder}/store"
        spawn(run_rank, (address, arguments), nprocs=RANKS)  # type: ignore[no-untyped-call]


if __name__ == "__main__":
    main()
