# SPDX-License-Identifier: Apache-2.0
"""How far equal trainings drift apart by rounding alone: sharded AdamW, Farandole's and torch's.

    python benchmarks/zero/rounding.py           # two ranks, a few minutes
    python benchmarks/zero/rounding.py --quick   # does it work?

Every lane trains the same residual network on the same batches, with Farandole's
DistributedDataParallel, so that gradients of equal parameters have equal bits; the optimizer alone
differs. `nudged` is torch's foreach loops again, where the first weights began one unit in their
last place higher: what it drifts is what the training itself makes of rounding.

Prints, for each type of the parameters, the largest difference of a step's loss from torch's
foreach loops, and writes zero_rounding.jsonl into benchmarks/results.
"""

import argparse
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

BENCHMARKS = Path(__file__).resolve().parent.parent
sys.path += [str(BENCHMARKS / "collectives"), str(BENCHMARKS / "ddp")]

import farandole  # noqa: E402
import machine  # noqa: E402
import results  # noqa: E402
import torch  # noqa: E402
from models import resnet  # noqa: E402
from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZero  # noqa: E402
from torch.nn import functional  # noqa: E402

RANKS = 2
CLASSES = 10
Settings = dict[str, Any]
Lane = Callable[[Any, Settings], torch.optim.Optimizer]


def torch_lane(**loops: bool) -> Lane:
    """Torch's ZeroRedundancyOptimizer with a choice of torch's loops."""
    return lambda parameters, settings: TorchZero(
        parameters, torch.optim.AdamW, **settings, **loops
    )


def own_lane(gradients: str) -> Lane:
    """Farandole's, with its fused loops."""
    return lambda parameters, settings: farandole.ZeroRedundancyOptimizer(
        parameters,
        torch.optim.AdamW,
        gradients=gradients,  # type: ignore[arg-type]
        **settings,
    )


LANES = {
    "torch_foreach": torch_lane(foreach=True),
    "torch_foreach_nudged": torch_lane(foreach=True),
    "torch_fused": torch_lane(fused=True),
    "ours_full": own_lane("full"),
    "ours_shard": own_lane("shard"),
}


def train(name: str, dtype: torch.dtype, quick: bool, rank: int) -> list[float]:
    """The mean loss of all ranks, by step: two epochs of noisy images of ten classes."""
    torch.manual_seed(0)
    model = resnet(8, [1, 1, 1, 1]) if quick else resnet(32, [2, 2, 2, 2])
    model[-1] = torch.nn.Linear(model[-1].in_features, CLASSES)
    model = model.to(dtype)
    if name.endswith("nudged"):
        with torch.no_grad():
            weight = model[0].weight
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
    optimizer = LANES[name](ddp.parameters(), {"lr": 1e-3, "weight_decay": 0.05})
    losses = []
    for inputs, classes in data * 2:
        optimizer.zero_grad()
        loss = functional.cross_entropy(ddp(inputs), classes)
        loss.backward()
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


def run_rank(rank: int, address: str, quick: bool, output: Path | None) -> None:
    """One of the ranks; the first one writes."""
    torch.set_num_threads(1)
    farandole.init_process_group(init_method=address, rank=rank, world_size=RANKS)
    rows = []
    for dtype in (torch.float32, torch.float64):
        losses = {name: train(name, dtype, quick, rank) for name in LANES}
        for name in LANES:
            row = {"lane": name, "dtype": str(dtype).removeprefix("torch."), "ranks": RANKS}
            rows.append({**row, **drift_of(losses[name], losses["torch_foreach"])})
    farandole.destroy()
    if rank != 0:
        return
    for row in rows:
        print(
            f"{row['dtype']:8} {row['lane']:21} first epoch {row['first_epoch']:.1e}, "
            f"second {row['second_epoch']:.1e}; last loss {row['last_loss']:.4f}"
        )
    if output:
        where = machine.describe()
        results.replace(output, [{**row, **where} for row in rows], lambda row: row["dtype"])


def main() -> None:
    """Starts the ranks."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a tiny network, six steps")
    parser.add_argument("--output", type=Path, help="folder; benchmarks/results unless --quick")
    arguments = parser.parse_args()
    output = arguments.output or (None if arguments.quick else BENCHMARKS / "results")
    file = output and output / "zero_rounding.jsonl"
    with tempfile.TemporaryDirectory() as folder:
        address = f"file://{folder}/store"
        torch.multiprocessing.spawn(run_rank, (address, arguments.quick, file), nprocs=RANKS)


if __name__ == "__main__":
    main()
