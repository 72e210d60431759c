# SPDX-License-Identifier: Apache-2.0
"""Trains a convolutional classifier on handwritten digits, data-parallel over Farandole.

    python examples/digits/train.py                                    # starts its own 2 ranks
    torchrun --standalone --nproc-per-node=4 examples/digits/train.py  # or as many as you like

Comments (1) to (4) mark all that data parallelism asks of a training script. The rest is the proof:
the same training runs three times, epoch by epoch in turn, on the same global batches:

- over Farandole,
- over gloo, which is what torch offers for CPU tensors, to compare the speed,
- in one process without any communication, to compare the loss of every single step.
"""

import os
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass, field

import farandole  # noqa: F401  (1) tells torch.distributed about the backend
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel
from tqdm import tqdm

RANKS = 2  # when started without torchrun
EPOCHS = 12
GLOBAL_BATCH = 64  # images of one step, over all ranks
LEARNING_RATE = 0.1  # the highest of a one-cycle schedule
ACCURACY_WANTED = 0.97

# Two ranks average two half-batch gradients where one process averages 64 images: the same sum in
# another order, so every step adds float32 rounding (2**-24, 6e-8 of a gradient) and later steps
# start from weights that differ by it. The model is smooth (GELU, average pooling), so that this
# does not explode: 1e-6 to 1e-5 of a loss that begins at 2.3 was seen; a wrong average gives 1e-1.
LOSS_TOLERANCE = 1e-3


@dataclass
class Digits:
    """Images are (N, 1, 8, 8) float32 in 0..1, labels (N,) int64 in 0..9."""

    train_images: Tensor
    train_labels: Tensor
    test_images: Tensor
    test_labels: Tensor


def load_data() -> Digits:
    """The 1797 real digits that come with scikit-learn: always the same 1437 train, 360 test."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=360, random_state=0, stratify=labels)
    train_images, test_images = (
        torch.tensor(part, dtype=torch.float32).view(-1, 1, 8, 8) / 16 for part in parts[:2]
    )
    train_labels, test_labels = (torch.tensor(part, dtype=torch.int64) for part in parts[2:])
    return Digits(train_images, train_labels, test_images, test_labels)


def new_model() -> nn.Module:
    """151,498 parameters; equal at every call, so that all three runs start alike."""
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 32, kernel_size=3, padding=1),
        nn.GroupNorm(4, 32),  # of each image alone, so a batch may be shared out at will
        nn.GELU(),
        nn.Conv2d(32, 64, kernel_size=3, padding=1),
        nn.GroupNorm(4, 64),
        nn.GELU(),
        nn.AvgPool2d(2),
        nn.Flatten(),
        nn.Linear(64 * 4 * 4, 128),
        nn.GELU(),
        nn.Linear(128, 10),
    )


@dataclass
class Run:
    """One of the three trainings: its model, who shares its batches, and what it measured."""

    name: str
    model: nn.Module
    group: dist.ProcessGroup | None  # None: this process trains alone
    steps: int  # in all epochs
    losses: list[float] = field(default_factory=list)  # of each step, mean over the global batch
    images_per_second: list[float] = field(default_factory=list)  # of each epoch

    def __post_init__(self) -> None:
        parameters = self.model.parameters()
        self.optimizer = torch.optim.SGD(parameters, lr=LEARNING_RATE, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=LEARNING_RATE, total_steps=self.steps, cycle_momentum=False
        )
        self.rank = dist.get_rank(self.group) if self.group else 0
        self.world_size = dist.get_world_size(self.group) if self.group else 1

    def train_epoch(self, data: Digits, batches: list[Tensor], progress: tqdm) -> None:
        """One pass over `batches`, each a tensor of GLOBAL_BATCH indices."""
        self.model.train()
        losses = torch.zeros(len(batches))
        self.wait_for_all()
        start = time.perf_counter()
        for step, batch in enumerate(batches):
            mine = batch[self.rank :: self.world_size]  # (3) each rank takes its share of a batch
            output = self.model(data.train_images[mine])
            loss = nn.functional.cross_entropy(output, data.train_labels[mine])
            self.optimizer.zero_grad()
            loss.backward()  # (4) DistributedDataParallel averages the gradients over the ranks
            self.optimizer.step()
            self.schedule.step()
            losses[step] = loss.detach()
            progress.update()
        self.wait_for_all()
        seconds = time.perf_counter() - start
        self.images_per_second.append(len(batches) * GLOBAL_BATCH / seconds)
        self.losses += self.sum_over_ranks(losses / self.world_size).tolist()

    @torch.no_grad()
    def test_accuracy(self, data: Digits) -> float:
        """Each rank tests its share of the images; the counts are summed."""
        self.model.eval()
        images = data.test_images[self.rank :: self.world_size]
        labels = data.test_labels[self.rank :: self.world_size]
        correct = (self.model(images).argmax(dim=1) == labels).sum()
        return self.sum_over_ranks(correct).item() / len(data.test_labels)

    def sum_over_ranks(self, tensor: Tensor) -> Tensor:
        """Returns `tensor`, summed in place over the ranks of this run."""
        if self.group:
            dist.all_reduce(tensor, group=self.group)
        return tensor

    def wait_for_all(self) -> None:
        """Returns when every rank of this run is here, so that the clock is fair."""
        if self.group:
            dist.barrier(self.group)


def global_batches(count: int, epoch: int) -> list[Tensor]:
    """The same shuffled batches on every rank and in every run; what is left over is dropped."""
    order = torch.randperm(count, generator=torch.Generator().manual_seed(epoch))
    return [batch for batch in order.split(GLOBAL_BATCH) if len(batch) == GLOBAL_BATCH]


def train() -> None:
    """What every rank runs."""
    torch.set_num_threads(1)  # one core for each rank
    dist.init_process_group("farandole")  # (2) finds its peers through torchrun's variables
    world_size = dist.get_world_size()
    if GLOBAL_BATCH % world_size:
        sys.exit(f"{GLOBAL_BATCH} images cannot be shared equally by {world_size} ranks")
    first = dist.get_rank() == 0

    data = load_data()
    steps = EPOCHS * len(global_batches(len(data.train_labels), epoch=0))
    model = DistributedDataParallel(new_model())
    ours = Run("farandole", model, dist.group.WORLD, steps)
    gloo_group = dist.new_group(backend="gloo")
    model = DistributedDataParallel(new_model(), process_group=gloo_group)
    gloo = Run("gloo", model, gloo_group, steps)
    alone = Run("one process", new_model(), None, steps)  # rank 0 trains it, the others wait

    runs = [ours, gloo, alone] if first else [ours, gloo]
    progress = tqdm(total=steps * len(runs), unit="step", disable=not first, smoothing=0)
    accuracy = 0.0
    for epoch in range(EPOCHS):
        batches = global_batches(len(data.train_labels), epoch)
        for run in runs:
            progress.set_description(f"epoch {epoch + 1:2}/{EPOCHS} {run.name:11}")
            run.train_epoch(data, batches, progress)
        accuracy = ours.test_accuracy(data)
        if first:
            progress.write(describe_epoch(epoch, len(batches), accuracy, ours, gloo))
    progress.close()
    dist.destroy_process_group()
    if first:
        report(ours, gloo, alone, accuracy)


def describe_epoch(epoch: int, steps: int, accuracy: float, ours: Run, gloo: Run) -> str:
    """One line for the epoch just done; `steps` is its number of steps."""
    return (
        f"epoch {epoch + 1:2}/{EPOCHS}  loss {statistics.fmean(ours.losses[-steps:]):.4f}  "
        f"test accuracy {accuracy:.1%}  images/s: farandole {ours.images_per_second[-1]:,.0f}, "
        f"gloo {gloo.images_per_second[-1]:,.0f}"
    )


def report(ours: Run, gloo: Run, alone: Run, accuracy: float) -> None:
    """Prints speed, deviation and accuracy; exits with an error where they are not as promised."""
    print(f"\nimages per second, median of {EPOCHS} epochs, {GLOBAL_BATCH} images a step:")
    gloo_speed = statistics.median(gloo.images_per_second)
    for run in (ours, gloo, alone):
        speed = statistics.median(run.images_per_second)
        ranks = f"{run.world_size} rank{'s' if run.world_size > 1 else ''}"
        print(f"  {run.name:11}  {ranks:8} {speed:8,.0f}   {speed / gloo_speed:.2f} x gloo")

    deviation = max(abs(a - b) for a, b in zip(ours.losses, alone.losses, strict=True))
    print(
        f"\nloss of {len(ours.losses)} steps against one process on the same batches: "
        f"largest deviation {deviation:.1e}, tolerance {LOSS_TOLERANCE:.0e}"
    )
    print(f"test accuracy {accuracy:.1%}, wanted {ACCURACY_WANTED:.0%}")
    if not deviation <= LOSS_TOLERANCE:  # written so that NaN fails too
        sys.exit("FAILED: the loss curve is not that of one process")
    if not accuracy >= ACCURACY_WANTED:
        sys.exit("FAILED: the test accuracy is too low")


def launch() -> int:
    """Starts RANKS copies of this script with torch's own launcher."""
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    command += [f"--nproc-per-node={RANKS}", __file__]
    return subprocess.run(command, env={"OMP_NUM_THREADS": "1", **os.environ}).returncode


if __name__ == "__main__":
    if "RANK" in os.environ:  # torchrun, or launch(), has started this process
        train()
    else:
        sys.exit(launch())
