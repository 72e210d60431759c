# SPDX-License-Identifier: Apache-2.0
"""Trains a ResNet on images, as the recipes for large batches do.

    farandole run -n 2 examples/python/train_resnet.py --model resnet18 --image-size 32  # shapes
    farandole run -n 8 examples/python/train_resnet.py --data imagenet --batch 2048 --epochs 90 \
        --precision bf16 --workers 8

`--data` is a folder with `train` and `val`, which have a folder for each class. To train on other
data, replace load_data(). examples/cpp/train_resnet.cpp is the same program in C++.

The recipe is that of Goyal et al. 2017 (arXiv:1706.02677): a learning rate of 0.1 for 256 images,
in proportion to the batch, that rises for some epochs, Nesterov's momentum, a weight decay that
leaves biases and batch normalization out, blocks that add nothing at first; and label smoothing.
From 8192 images in a step on, the optimizer is LARS. A training that has ended, or was ended, goes
on from its last checkpoint when it is started again, on any number of ranks.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from pathlib import Path
from typing import Any

import farandole
import torch
from batch_check import check_batch
from crops import Crops
from early_stopping import EarlyStopping
from image_folder import image_folder
from loader_workers import outlive_preemption
from resnet import LAYERS, ResNet
from resume_check import check_steps
from shapes import KINDS, Shapes
from torch import Tensor, nn
from torch.nn.functional import cross_entropy
from torch.optim.lr_scheduler import CosineAnnealingLR, LinearLR, PolynomialLR, SequentialLR
from torch.utils.data import DataLoader
from training_log import TrainingLog, progress_bar

LARS_BATCH = 8192  # images of a step, from which on SGD is replaced
STATIC_SCALE = 1024.0
COLUMNS = ["loss", "lr", "images_per_s", "test_loss", "top1", "top5"]


def read_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        description=__doc__.splitlines()[0], formatter_class=argparse.ArgumentDefaultsHelpFormatter
    )
    add = parser.add_argument
    add(
        "--data", type=Path, help="folder with train/CLASS/NAME and val/CLASS/NAME; default: shapes"
    )
    add("--shapes", type=int, default=4096, help="images to learn from, without --data")
    add("--model", choices=list(LAYERS), default="resnet50", help="network")
    add("--image-size", type=int, default=224, help="width and height of an image in pixels")
    add("--batch", type=int, default=256, help="images in a step of all ranks")
    add("--epochs", type=int, default=90, help="passes through the data")
    add("--warm-up", type=int, default=5, help="epochs in which the learning rate rises")
    add(
        "--schedule",
        choices=["polynomial", "cosine"],
        default="cosine",
        help="learning rate after the warm-up",
    )
    add(
        "--optimizer",
        choices=["sgd", "lars"],
        help="default: lars for batches of 8192 images or more, else sgd",
    )
    add(
        "--lr",
        type=float,
        help="peak learning rate; default: 0.1 for 256 images, with LARS 10 for 8192",
    )
    add("--weight-decay", type=float, default=1e-4, help="weight decay, of weights only")
    add("--smoothing", type=float, default=0.1, help="smoothing of the labels")
    add(
        "--precision",
        choices=["fp32", "bf16", "fp16"],
        default="fp32",
        help="precision of convolutions",
    )
    add("--loss-scale", choices=["static", "dynamic"], default="dynamic", help="loss scale of fp16")
    workers = min(len(os.sched_getaffinity(0)), 8)  # the cores of this rank
    add("--workers", type=int, default=workers, help="processes of each rank that load images")
    add("--patience", type=int, default=0, help="epochs without a better top-1; 0: all epochs")
    add(
        "--output",
        type=Path,
        default=Path("build/resnet"),
        help="folder for checkpoints and log.csv",
    )
    add("--log-every", type=int, default=20, help="steps between rows of the log; 0: none")
    add("--stop-at", type=int, default=0, help="save and exit after this step; 0: run to the end")
    add("--seed", type=int, default=0, help="seed of weights and of the order of images")
    arguments = parser.parse_args()
    arguments.optimizer = arguments.optimizer or (
        "lars" if arguments.batch >= LARS_BATCH else "sgd"
    )
    return arguments


def load_data(arguments: argparse.Namespace) -> tuple[Crops, Crops, int]:
    """Images to learn from, images to test with, and how many classes they have.

    Replace this by your own: any two datasets of images, (3, height, width), and class numbers.
    """
    size = arguments.image_size
    if arguments.data:
        train, test = (image_folder(arguments.data / part) for part in ("train", "val"))
        if train.classes != test.classes:
            sys.exit(f"{arguments.data}/train and {arguments.data}/val have different classes.")
        return Crops(train, size, smallest=0.08), Crops(test, size), len(train.classes)
    side = size * 8 // 7
    count = arguments.shapes
    train, test = Shapes(count, side, seed=0), Shapes(count // 4, side, seed=1)
    return Crops(train, size, smallest=0.5), Crops(test, size), len(KINDS)


def new_optimizer(net: nn.Module, arguments: argparse.Namespace) -> torch.optim.Optimizer:
    """SGD, or LARS (arXiv:1708.03888) for large batches. Vectors have no weight decay."""
    groups = [
        {"params": [p for p in net.parameters() if p.dim() > 1]},
        {"params": [p for p in net.parameters() if p.dim() <= 1], "weight_decay": 0.0},
    ]
    options = {"momentum": 0.9, "nesterov": True, "weight_decay": arguments.weight_decay}
    is_lars = arguments.optimizer == "lars"
    lr, of_batch = (10.0, LARS_BATCH) if is_lars else (0.1, 256)
    lr = farandole.optim.linear_scaled_lr(lr, arguments.batch, of_batch)
    options["lr"] = lr if arguments.lr is None else arguments.lr
    return (farandole.optim.LARS if is_lars else torch.optim.SGD)(groups, **options)


def new_scheduler(
    optimizer: torch.optim.Optimizer, arguments: argparse.Namespace, epoch_steps: int
) -> SequentialLR:
    """A line up, then a curve down to 0. It counts steps."""
    warm_up = max(arguments.warm_up * epoch_steps, 1)
    rest = max(arguments.epochs * epoch_steps - warm_up, 1)
    rise = LinearLR(optimizer, 1 / warm_up, total_iters=warm_up)
    if arguments.schedule == "polynomial":
        fall = PolynomialLR(optimizer, rest, power=2.0)
    else:
        fall = CosineAnnealingLR(optimizer, rest)
    return SequentialLR(optimizer, [rise, fall], [warm_up])


class Trainer:
    """The parts of a training. All ranks call its methods."""

    def __init__(self, arguments: argparse.Namespace) -> None:
        self.arguments = arguments
        cuda = torch.cuda.is_available()
        self.device = torch.device("cuda", farandole.local_rank()) if cuda else torch.device("cpu")
        if cuda:
            torch.cuda.set_device(self.device)
        train_data, test_data, classes = load_data(arguments)
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
        self.net = ResNet(arguments.model, classes).to(self.device)
        self.model = farandole.DistributedDataParallel(self.net)
        self.optimizer = new_optimizer(self.net, arguments)
        self.epoch_steps = len(train_data) // arguments.batch
        self.scheduler = new_scheduler(self.optimizer, arguments, self.epoch_steps)
        scaled = arguments.precision == "fp16"
        scale = STATIC_SCALE if arguments.loss_scale == "static" else 2.0**16
        self.scaler = farandole.GradScaler(self.device.type, init_scale=scale, enabled=scaled)
        self.early_stopping = EarlyStopping(arguments.patience)
        self.preemption = farandole.CheckpointOnSignal()

        self.checkpoints = arguments.output / "checkpoints"
        self.parts: dict[str, Any] = {"model": self.model, "optimizer": self.optimizer}
        self.parts |= {"scheduler": self.scheduler, "scaler": self.scaler}
        found = farandole.resume_or_start(self.checkpoints, **self.parts, sampler=self.sampler)
        self.step = found["step"] if found else 0
        self.steps = arguments.epochs * self.epoch_steps
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
        dtype = "float16" if self.arguments.precision == "fp16" else "bfloat16"
        mixed = self.arguments.precision != "fp32"
        with farandole.autocast(self.device.type, dtype=dtype, enabled=mixed):
            return model(images.to(self.device, non_blocking=True)).float()

    def train_step(self, images: Tensor, labels: Tensor) -> Tensor:
        """Returns the loss of this rank's images."""
        scores = self.scores_of(self.model, images)
        labels = labels.to(self.device, non_blocking=True)
        loss = cross_entropy(scores, labels, label_smoothing=self.arguments.smoothing)
        self.optimizer.zero_grad()
        self.scaler.scale(loss).backward()
        self.scaler.step(self.optimizer)
        static = self.arguments.loss_scale == "static"
        self.scaler.update(STATIC_SCALE if static and self.scaler.is_enabled() else None)
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
        for taken, (images, labels) in enumerate(bar, start=1):
            lr = self.scheduler.get_last_lr()[0]
            loss = self.train_step(images, labels)
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
        """Loss and accuracies over all test images."""
        for buffer in self.net.buffers():  # each rank has normalized batches of its own
            if buffer.is_floating_point():
                farandole.all_reduce(buffer, op="avg")
        self.net.eval()
        sums = torch.zeros(4, dtype=torch.float64)  # loss, first, among the first 5, images
        for images, labels in self.test_loader:
            scores = self.scores_of(self.net, images).cpu()
            hits = scores.topk(min(5, scores.shape[1])).indices == labels[:, None]
            loss = cross_entropy(scores, labels, reduction="sum").item()
            counts = [hits[:, 0].sum().item(), hits.sum().item(), len(labels)]
            sums += torch.tensor([loss, *counts], dtype=torch.float64)
        farandole.all_reduce(sums)
        loss, top1, top5 = (sums[:3] / sums[3]).tolist()
        return {"test_loss": loss, "top1": top1, "top5": top5}

    def train(self) -> None:
        """From where the last checkpoint was saved to the end."""
        for epoch in range(self.sampler.epoch, self.arguments.epochs):
            if not self.train_epoch(epoch):
                return
            metrics = self.evaluate()
            self.log.write(self.step, **metrics)
            stop = self.early_stopping.should_stop(metrics["top1"])
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
