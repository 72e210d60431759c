# SPDX-License-Identifier: Apache-2.0
"""Trains a U-Net to tell what each pixel of an image belongs to.

    farandole run -n 2 examples/python/train_unet.py --image-size 48 --epochs 12  # shapes
    farandole run -n 8 examples/python/train_unet.py --data FOLDER --classes 21 --precision bf16

`--data` is a folder with `train` and `val`, which have `images` and `masks` of the same names; see
mask_folder.py. To train on other data, replace load_data(). examples/cpp/train_unet.cpp is the same
program in C++.

Batches are small, as images are large, so SyncBatchNorm normalizes with the batches of all ranks.
The optimizer, AdamW, is sharded: each rank keeps the state of a part of the parameters. Losses are
therefore the same on any number of ranks, but for rounding. A training that has ended, or was
ended, goes on from its last checkpoint when it is started again, on any number of ranks.
"""

from __future__ import annotations

import argparse
import os
import time
from pathlib import Path
from typing import Any

import farandole
import torch
from batch_check import check_batch
from early_stopping import EarlyStopping
from flips import Flips
from loader_workers import outlive_preemption
from mask_folder import MaskFolder
from resume_check import check_steps
from shapes import KINDS, ShapeMasks
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import PolynomialLR
from torch.utils.data import DataLoader
from training_log import TrainingLog, progress_bar
from unet import UNet

COLUMNS = ["loss", "lr", "images_per_s", "test_loss", "accuracy", "mean_iou"]


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add("--data", type=Path, help="folder with train and val, which have images and masks")
    add(
        "--classes",
        type=int,
        default=2,
        help="number of classes in --data, including the background",
    )
    add("--shapes", type=int, default=2048, help="images to learn from, without --data")
    add(
        "--image-size",
        type=int,
        default=256,
        help="width and height of an image in pixels, a multiple of 8",
    )
    add("--width", type=int, default=16, help="channels at full resolution")
    add("--batch", type=int, default=16, help="images in a step of all ranks")
    add("--epochs", type=int, default=50, help="passes through the data")
    add("--lr", type=float, default=3e-3, help="initial learning rate; it falls to 0")
    add("--weight-decay", type=float, default=1e-2, help="weight decay, of all parameters")
    add("--precision", choices=["fp32", "bf16"], default="fp32", help="precision of convolutions")
    workers = min(len(os.sched_getaffinity(0)), 8)  # the cores of this rank
    add("--workers", type=int, default=workers, help="processes of each rank that load images")
    add("--patience", type=int, default=0, help="epochs without a better IoU; 0: all epochs")
    add(
        "--output", type=Path, default=Path("build/unet"), help="folder for checkpoints and log.csv"
    )
    add("--log-every", type=int, default=20, help="steps between rows of the log; 0: none")
    add("--stop-at", type=int, default=0, help="save and exit after this step; 0: run to the end")
    add("--seed", type=int, default=0, help="seed of weights and of the order of images")
    return parser.parse_args()


def load_data(arguments: argparse.Namespace) -> tuple[Flips, Flips, int]:
    """Images to learn from, images to test with, and how many classes their pixels have.

    Replace this by your own: any two datasets of images, (3, size, size), and masks, (size, size).
    """
    size = arguments.image_size
    if arguments.data:
        classes = arguments.classes
        train, test = (
            MaskFolder(arguments.data / part, size, classes) for part in ("train", "val")
        )
        return Flips(train, random=True), Flips(test, random=False), classes
    count = arguments.shapes
    train, test = ShapeMasks(count, size, seed=0), ShapeMasks(count // 4, size, seed=1)
    return Flips(train, random=True), Flips(test, random=False), len(KINDS) + 1


def mean_iou(confusion: Tensor) -> float:
    """Pixels of a class that are found, in its pixels and those taken for it; mean over classes.

    `confusion`: pixels by true and by found class. Classes without a pixel do not count.
    """
    both = confusion.diag()
    either = confusion.sum(0) + confusion.sum(1) - both
    return (both[either > 0] / either[either > 0]).mean().item()


class Trainer:
    """The parts of a training. All ranks call its methods."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", farandole.local_rank()) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(self.device)
        train_data, test_data, self.classes = load_data(arguments)
        check_batch(arguments.batch, len(train_data), len(test_data))
        self.train_data, self.batch = train_data, arguments.batch // farandole.world_size()
        self.sampler = farandole.DistributedSampler(train_data, seed=arguments.seed, drop_last=True)
        loading: dict[str, Any] = {"batch_size": self.batch, "num_workers": arguments.workers}
        loading |= {"pin_memory": cuda, "worker_init_fn": outlive_preemption}
        self.loader = DataLoader(train_data, sampler=self.sampler, drop_last=True, **loading)
        # Each image once, although ranks may have one more than others.
        exact = farandole.DistributedSampler(test_data, shuffle=False, even_divisible=False)
        self.test_loader = DataLoader(test_data, sampler=exact, **loading)

        torch.manual_seed(arguments.seed)
        net = UNet(self.classes, arguments.width).to(self.device)
        self.net = farandole.SyncBatchNorm.convert_sync_batchnorm(net)
        self.model = farandole.DistributedDataParallel(self.net)
        self.optimizer = farandole.ZeroRedundancyOptimizer(
            self.model.parameters(),
            torch.optim.AdamW,
            lr=arguments.lr,
            weight_decay=arguments.weight_decay,
        )
        self.epoch_steps = len(train_data) // arguments.batch
        self.steps = max(arguments.epochs * self.epoch_steps, 1)
        self.scheduler = PolynomialLR(self.optimizer, self.steps, power=0.9)
        self.early_stopping = EarlyStopping(arguments.patience)
        self.preemption = farandole.CheckpointOnSignal()

        self.checkpoints = arguments.output / "checkpoints"
        self.parts: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}
        self.parts["scheduler"] = self.scheduler
        found = farandole.resume_or_start(self.checkpoints, **self.parts, sampler=self.sampler)
        self.step = found["step"] if found else 0
        if found:
            check_steps(found["steps"], self.steps)
            self.early_stopping.load_state_dict(found)
        folder = arguments.output if farandole.rank() == 0 else None
        self.log = TrainingLog(folder, COLUMNS, self.step, self.steps, self.epoch_steps)

    def save(self, taken: int) -> None:
        """`taken`: steps since the pass through the data began."""
        values = {"step": self.step, "steps": self.steps, **self.early_stopping.state_dict()}
        sampler = self.sampler.state_dict(taken * self.batch)
        farandole.save_checkpoint(
            self.checkpoints, **self.parts, sampler=sampler, values=values, step=self.step, keep=2
        )

    def scores_of(self, model: nn.Module, images: Tensor) -> Tensor:
        """In float32; convolutions run in what --precision says."""
        mixed = self.arguments.precision == "bf16"
        with farandole.autocast(self.device.type, dtype="bfloat16", enabled=mixed):
            return model(images.to(self.device, non_blocking=True)).float()

    def train_step(self, images: Tensor, masks: Tensor) -> Tensor:
        """Returns the loss of this rank's images."""
        scores = self.scores_of(self.model, images)
        loss = cross_entropy(scores, masks.to(self.device, non_blocking=True))
        self.optimizer.zero_grad()
        loss.backward()
        self.optimizer.step()
        self.scheduler.step()
        self.step += 1
        return loss.detach()

    def train_epoch(self, epoch: int) -> bool:
        """What is left of the epoch. False if the training must end."""
        self.sampler.set_epoch(epoch)
        self.train_data.epoch = epoch
        self.model.train()
        log_every = self.arguments.log_every
        since, start, stop_at = self.step, time.perf_counter(), self.arguments.stop_at
        bar = progress_bar(self.loader, epoch, shown=farandole.rank() == 0)
        for taken, (images, masks) in enumerate(bar, start=1):
            lr = self.scheduler.get_last_lr()[0]
            loss = self.train_step(images, masks)
            if log_every > 0 and self.step % log_every == 0:
                farandole.all_reduce(loss, op="avg")
                seconds = time.perf_counter() - start
                speed = (self.step - since) * self.arguments.batch / seconds
                self.log.write(self.step, loss=loss.item(), lr=lr, images_per_s=speed)
                since, start = self.step, time.perf_counter()
            preempted = self.preemption.requested()
            if preempted or self.step == stop_at:
                self.save(taken)
                if preempted:
                    self.preemption.exit()
                return False
        return True

    @torch.no_grad()
    def evaluate(self) -> dict[str, float]:
        """Loss, share of pixels that are right, and mean IoU over all test images."""
        self.net.eval()
        confusion = torch.zeros(self.classes, self.classes, dtype=torch.float64)
        loss = torch.zeros((), dtype=torch.float64)
        for images, masks in self.test_loader:
            scores = self.scores_of(self.net, images).cpu()
            loss += cross_entropy(scores, masks, reduction="sum").double()
            pairs = (masks * self.classes + scores.argmax(1)).flatten()
            confusion += pairs.bincount(minlength=self.classes**2).view_as(confusion)
        farandole.all_reduce(confusion)
        farandole.all_reduce(loss)
        pixels = confusion.sum()
        return {
            "test_loss": (loss / pixels).item(),
            "accuracy": (confusion.trace() / pixels).item(),
            "mean_iou": mean_iou(confusion),
        }

    def train(self) -> None:
        """From where the last checkpoint was saved to the end."""
        for epoch in range(self.sampler.epoch, self.arguments.epochs):
            if not self.train_epoch(epoch):
                return
            metrics = self.evaluate()
            self.log.write(self.step, **metrics)
            stop = self.early_stopping.should_stop(metrics["mean_iou"])
            self.sampler.set_epoch(self.arguments.epochs if stop else epoch + 1)
            self.save(taken=0)
            if stop:
                return


def main() -> None:
    """What every rank runs."""
    arguments = read_arguments()
    farandole.init_process_group()
    Trainer(arguments).train()
    farandole.destroy()


if __name__ == "__main__":
    main()
