# SPDX-License-Identifier: Apache-2.0
"""Trains a classifier of handwritten digits with Farandole's DistributedDataParallel.

    python examples/python/train_digits.py                                    # on 2 ranks
    torchrun --standalone --nproc-per-node=4 examples/python/train_digits.py  # on 4

Comments (1) to (4) mark all that data parallelism asks of a script. Each step has the same 64
images however many ranks share them out, so losses are the same at any number of ranks, but for
rounding. As a proof the same training runs two more times, epoch by epoch in turn: with torch's
DistributedDataParallel over gloo, to compare the speed, and in one process without any
communication, to compare the loss of every step.
"""

import os
import statistics
import subprocess
import sys
import time

import farandole
import torch
import torch.distributed as dist
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split
from torch import Tensor, nn
from torch.nn.functional import cross_entropy

RANKS = 2  # when started without torchrun
EPOCHS = 12
GLOBAL_BATCH = 64  # images of one step, over all ranks
STEPS = 22  # of an epoch of 1437 images; what is left over is dropped
ACCURACY_WANTED = 0.97

# Two ranks average two half-batch gradients where one process averages 64 images: the same sum in
# another order, so every step adds float32 rounding (2**-24, 6e-8 of a gradient) and later steps
# start from weights that differ by it. The model is smooth (GELU, average pooling), so that this
# does not explode: 1e-6 to 1e-5 of a loss that begins at 2.3 was seen; a wrong average gives 1e-1.
LOSS_TOLERANCE = 1e-3


def load_data() -> list[Tensor]:
    """1437 images to train and 360 to test, (N, 1, 8, 8) in 0..1, then the labels of both."""
    images, labels = load_digits(return_X_y=True)
    parts = train_test_split(images, labels, test_size=360, random_state=0, stratify=labels)
    inputs = [torch.tensor(part, dtype=torch.float32).view(-1, 1, 8, 8) / 16 for part in parts[:2]]
    return inputs + [torch.tensor(part, dtype=torch.int64) for part in parts[2:]]


def new_model() -> nn.Module:
    """151,498 parameters; equal at every call, so that all three trainings start alike."""
    torch.manual_seed(0)
    return nn.Sequential(
        *(nn.Conv2d(1, 32, kernel_size=3, padding=1), nn.GroupNorm(4, 32), nn.GELU()),
        *(nn.Conv2d(32, 64, kernel_size=3, padding=1), nn.GroupNorm(4, 64), nn.GELU()),
        *(nn.AvgPool2d(2), nn.Flatten(), nn.Linear(64 * 4 * 4, 128), nn.GELU()),
        nn.Linear(128, 10),
    )


class Run:
    """One of the three trainings. `group` shares its batches; None: this process trains alone."""

    def __init__(self, name: str, model: nn.Module, group: dist.ProcessGroup | None) -> None:
        self.name, self.model, self.group = name, model, group
        self.rank = dist.get_rank(group) if group else 0
        self.world_size = dist.get_world_size(group) if group else 1
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        self.schedule = torch.optim.lr_scheduler.OneCycleLR(
            self.optimizer, max_lr=0.1, epochs=EPOCHS, steps_per_epoch=STEPS, cycle_momentum=False
        )
        self.losses: list[float] = []  # of each step, mean over the global batch
        self.images_per_second: list[float] = []  # of each epoch

    def train_epoch(self, images: Tensor, labels: Tensor, batches: list[Tensor]) -> None:
        """One pass over `batches`, each a tensor of GLOBAL_BATCH indices."""
        losses = torch.zeros(len(batches))
        self.sum_over_ranks(torch.zeros(1))  # so that the clock starts when all are here
        start = time.perf_counter()
        for step, batch in enumerate(batches):
            mine = batch[self.rank :: self.world_size]  # (3) each rank takes its share of a batch
            loss = cross_entropy(self.model(images[mine]), labels[mine])
            self.optimizer.zero_grad()
            loss.backward()  # (4) gradients become the average of all ranks' while it runs
            self.optimizer.step()
            self.schedule.step()
            losses[step] = loss.detach()
        self.losses += self.sum_over_ranks(losses / self.world_size).tolist()
        seconds = time.perf_counter() - start
        self.images_per_second.append(len(batches) * GLOBAL_BATCH / seconds)

    @torch.no_grad()
    def test_accuracy(self, images: Tensor, labels: Tensor) -> float:
        """Each rank tests its share of the images; the counts are summed."""
        mine = slice(self.rank, None, self.world_size)
        correct = (self.model(images[mine]).argmax(dim=1) == labels[mine]).sum()
        return self.sum_over_ranks(correct).item() / len(labels)

    def sum_over_ranks(self, tensor: Tensor) -> Tensor:
        """Returns `tensor`, summed in place over the ranks of this training."""
        if self.group:
            dist.all_reduce(tensor, group=self.group)
        return tensor


def train() -> None:
    """What every rank runs."""
    torch.set_num_threads(1)  # one core for each rank
    world = farandole.init_process_group()  # (1) finds its peers through torchrun's variables
    if GLOBAL_BATCH % farandole.world_size():
        sys.exit(
            f"{GLOBAL_BATCH} images cannot be shared equally by {farandole.world_size()} ranks"
        )

    ours = Run("farandole", farandole.DistributedDataParallel(new_model()), world)  # (2)
    gloo_group = dist.new_group(backend="gloo")
    torchs = nn.parallel.DistributedDataParallel(new_model(), process_group=gloo_group)
    gloo = Run("gloo", torchs, gloo_group)
    alone = Run("one process", new_model(), None)  # rank 0 trains it, the others wait
    runs = [ours, gloo, alone] if farandole.rank() == 0 else [ours, gloo]

    train_images, test_images, train_labels, test_labels = load_data()
    accuracy = 0.0
    for epoch in range(EPOCHS):  # the same shuffled batches on every rank and in every training
        order = torch.randperm(len(train_labels), generator=torch.Generator().manual_seed(epoch))
        batches = list(order.split(GLOBAL_BATCH))[:STEPS]
        for run in runs:
            run.train_epoch(train_images, train_labels, batches)
        accuracy = ours.test_accuracy(test_images, test_labels)
        if farandole.rank() == 0:
            print(
                f"epoch {epoch + 1:2}/{EPOCHS}  loss {statistics.fmean(ours.losses[-STEPS:]):.6f}  "
                f"test accuracy {accuracy:.1%}  images/s: farandole "
                f"{ours.images_per_second[-1]:,.0f}, gloo {gloo.images_per_second[-1]:,.0f}",
                flush=True,
            )
    dist.destroy_process_group()
    if alone in runs:
        report(ours, gloo, alone, accuracy)


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


if __name__ == "__main__":
    if "RANK" in os.environ:  # torchrun, or the line below, has started this process
        train()
    else:
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
        command += [f"--nproc-per-node={RANKS}", __file__]
        sys.exit(subprocess.run(command, env={"OMP_NUM_THREADS": "1", **os.environ}).returncode)
