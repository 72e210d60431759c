# SPDX-License-Identifier: Apache-2.0
"""Distils a Vision Transformer into a smaller one, with its optimizer sharded, in bfloat16.

    python examples/python/train_vit_distillation.py [SEED [STEPS]]                     # 1 rank
    torchrun --standalone --nproc-per-node=2 examples/python/train_vit_distillation.py  # 2 ranks
    python examples/python/train_vit_distillation.py --checkpoints FOLDER  # goes on from there
    python examples/python/train_vit_distillation.py --export digits.bin  # for the one in C++

examples/cpp/train_vit_distillation.cpp is the same program, and what it prints but for times is the
same to the last digit; each goes on from checkpoints of the other, if SEED and STEPS are the same.

A teacher learns from 1297 images and their classes. Then one student is trained twice, from the
same weights and for as many steps: alone, on the first 100 images and their classes; distilled, on
the same batches of these, and on as many images again out of all 1297, of which it is told not the
class but how the teacher scores them. So the distilled student is told no more classes, but it sees
more images, and its teacher was told more classes. That is what distillation is for, and why it
wins here; were the students told all 1297 classes, there would be little left to win.

One function trains all three: each step's batch is shared out over the ranks,
DistributedDataParallel averages gradients, ZeroRedundancyOptimizer lets each rank update a part of
the parameters for all, and autocast() runs matrix products in bfloat16.
"""

import argparse
import sys
import time
from pathlib import Path
from typing import Any

import farandole
import torch
from progress import Progress
from sklearn.datasets import load_digits
from torch import Tensor, nn
from torch.nn import functional

TRAIN_IMAGES, TEST_IMAGES = 1297, 500
TOLD_IMAGES = 100  # whose classes the students are told: the first ones
PIXELS = 8 * 8  # of an image as it comes
CLASSES = 10

SIDE, PATCH = 32, 8  # pixels of an enlarged image, of a patch; one way
HEADS = 4
TEACHER_WIDTH, TEACHER_LAYERS = 64, 2
STUDENT_WIDTH, STUDENT_LAYERS = 32, 1

STEPS_PER_LINE = 50
STEPS = 200  # unless the command line tells another number
WARM_UP = 20  # steps
STEPS_PER_CHECKPOINT = 50
NETS = ["teacher", "alone", "distilled"]  # folders of checkpoints
BATCH = 48  # images with classes in a step, over all ranks
LEARNING_RATE = 3e-3  # at its peak
TEMPERATURE = 4.0
SOFT = 0.9  # weight of what the teacher says; the rest is for the classes


class Block(nn.Module):
    """Attention between patches, then a perceptron."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(width)
        self.query_key_value = nn.Linear(width, 3 * width)
        self.project = nn.Linear(width, width)
        self.perceptron_norm = nn.LayerNorm(width)
        self.widen = nn.Linear(width, 4 * width)
        self.narrow = nn.Linear(4 * width, width)

    def forward(self, x: Tensor) -> Tensor:
        """(images, patches, width), and so is the result."""
        parts = self.query_key_value(self.attention_norm(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value)
        attended = x + self.project(mixed.transpose(1, 2).flatten(2))
        return attended + self.narrow(functional.gelu(self.widen(self.perceptron_norm(attended))))


class VisionTransformer(nn.Module):
    """Images to scores of their classes (arXiv:2010.11929, but with the mean of the patches)."""

    def __init__(self, width: int, layers: int) -> None:
        super().__init__()
        self.patches = nn.Conv2d(1, width, kernel_size=PATCH, stride=PATCH)
        self.position = nn.Parameter(0.02 * torch.randn((SIDE // PATCH) ** 2, width))
        self.blocks = nn.ModuleList(Block(width) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images: Tensor) -> Tensor:
        """(images, 1, SIDE, SIDE) to (images, CLASSES)."""
        x = self.patches(images).flatten(2).transpose(1, 2) + self.position
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x).mean(1))


def read_rows() -> Tensor:
    """A row of bytes for each image, in a shuffled order: 8 x 8 pixels in 0..16, then its class."""
    pixels, classes = load_digits(return_X_y=True)
    rows = torch.cat([torch.tensor(pixels), torch.tensor(classes)[:, None]], dim=1)
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
    return rows[order].to(torch.uint8)


class Digits:
    """The images, of which the first TRAIN_IMAGES are there to learn from."""

    def __init__(self, rows: Tensor) -> None:
        self.small = rows[:, :PIXELS].float().view(-1, 1, 8, 8) / 16
        self.classes = rows[:, PIXELS].long()

    def images(self, chosen: Tensor) -> Tensor:
        """Enlarged to (images, 1, SIDE, SIDE)."""
        return functional.interpolate(self.small[chosen], size=(SIDE, SIDE), mode="bilinear")


def share_of_rank(batch: Tensor) -> Tensor:
    """All parts are equally large, so the mean over ranks is the mean over the batch."""
    return batch[farandole.rank() :: farandole.world_size()]


def loss_of(scores: Tensor, classes: Tensor, teacher_scores: Tensor | None) -> Tensor:
    """(1 - SOFT) * cross-entropy + SOFT * T^2 * KL(teacher || student), both softened by T.

    Hinton, Vinyals and Dean 2015, arXiv:1503.02531; T^2 makes up for gradients that shrink with
    1 / T^2. `classes` are those of the first images, scores are of all. Without a teacher: the
    cross-entropy.
    """
    hard = functional.cross_entropy(scores[: len(classes)], classes)
    if teacher_scores is None:
        return hard
    student = functional.log_softmax(scores / TEMPERATURE, dim=1)
    teacher = functional.log_softmax(teacher_scores / TEMPERATURE, dim=1)
    soft = functional.kl_div(student, teacher, reduction="batchmean", log_target=True)
    return (1 - SOFT) * hard + SOFT * TEMPERATURE**2 * soft


def learning_rate(step: int, steps: int) -> float:
    """Rises while the weights are raw, then falls to nothing."""
    return LEARNING_RATE * min((step + 1) / WARM_UP, (steps - step) / steps)


class StepTimes:
    """Seconds of each part of a step, summed over steps; waiting for other ranks is in them."""

    def __init__(self) -> None:
        self.steps = 0
        self.data = self.forward = self.backward = self.optimizer = 0.0
        self.last = time.perf_counter()

    def lap(self) -> float:
        """Seconds since the last call."""
        before, self.last = self.last, time.perf_counter()
        return self.last - before


@torch.no_grad()
def predict(net: VisionTransformer, images: Tensor) -> Tensor:
    """Scores from which nothing is learnt: for tests, and for a teacher, which is frozen."""
    with farandole.autocast("cpu", dtype="bfloat16"):
        return net(images).float()


def train(
    net: VisionTransformer,
    digits: Digits,
    steps: int,
    told: int,
    checkpoints: Path | None,
    teacher: VisionTransformer | None = None,
) -> StepTimes:
    """Teaches `net` the classes of the first `told` images, and what a `teacher` says of all.

    Goes on from the last one of `checkpoints`, a folder of this net. The times are those of steps
    after the first one of this process.
    """
    model = farandole.DistributedDataParallel(net)
    # Each rank keeps the state of its shard of the parameters, and updates that for all.
    optimizer = farandole.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW)
    # All ranks draw the same numbers, so each knows the whole batches.
    told_batches = torch.randint(told, (steps, BATCH))
    untold_batches = torch.randint(TRAIN_IMAGES, (steps, BATCH if teacher else 0))
    parts: dict[str, Any] = {"model": model, "optimizer": optimizer, "rng": False}
    found = farandole.resume_or_start(checkpoints, **parts) if checkpoints else None
    first = found["step"] if found else 0
    times, progress = StepTimes(), Progress(first, steps)
    for step in range(first, steps):
        mine = share_of_rank(told_batches[step])
        images = digits.images(torch.cat([mine, share_of_rank(untold_batches[step])]))
        classes = digits.classes[mine]
        times.data += times.lap()

        with farandole.autocast("cpu", dtype="bfloat16"):
            scores = model(images).float()  # the loss needs more digits than bfloat16 has
        loss = loss_of(scores, classes, predict(teacher, images) if teacher else None)
        times.forward += times.lap()

        optimizer.zero_grad()
        loss.backward()  # the gradients are those of the whole batch now
        times.backward += times.lap()

        optimizer.param_groups[0]["lr"] = learning_rate(step, steps)
        optimizer.step()  # every rank has all new parameters now
        times.optimizer += times.lap()
        times.steps += 1
        if step == first:  # which also sets things up
            times = StepTimes()
        if farandole.rank() == 0 and (step + 1) % STEPS_PER_LINE == 0:
            speed, left = progress.per_second(step + 1, BATCH), progress.left(step + 1)
            print(f"step {step + 1} of {steps}: {speed:.0f} images/s, {left} left", flush=True)
        if checkpoints and ((step + 1) % STEPS_PER_CHECKPOINT == 0 or step + 1 == steps):
            values = {"step": step + 1}
            farandole.save_checkpoint(checkpoints, **parts, values=values, step=step + 1, keep=2)
    return times


def test_accuracy(net: VisionTransformer, digits: Digits) -> float:
    """Each rank tests its share of the images; the counts are summed."""
    chosen = share_of_rank(torch.arange(TRAIN_IMAGES, TRAIN_IMAGES + TEST_IMAGES))
    correct = (predict(net, digits.images(chosen)).argmax(1) == digits.classes[chosen]).sum()
    farandole.all_reduce(correct)
    return correct.item() / TEST_IMAGES


def print_times(name: str, times: StepTimes) -> None:
    """A row of the table."""
    parts = (times.data, times.forward, times.backward, times.optimizer)
    print(f"{name:18}" + "".join(f"{1e3 * part / max(times.steps, 1):11.3f}" for part in parts))


def parameter_sum(net: VisionTransformer) -> float:
    """Tells whether ranks have different parameters."""
    return sum(parameter.detach().double().sum().item() for parameter in net.parameters())


def compare(digits: Digits, seed: int, steps: int, checkpoints: Path | None) -> None:
    """Trains the teacher and both students; prints times, accuracies and a check."""
    folders = [checkpoints / name if checkpoints else None for name in NETS]
    torch.manual_seed(seed)
    teacher = VisionTransformer(TEACHER_WIDTH, TEACHER_LAYERS)
    teacher_times = train(teacher, digits, steps, TRAIN_IMAGES, folders[0])
    torch.manual_seed(seed)
    alone = VisionTransformer(STUDENT_WIDTH, STUDENT_LAYERS)
    alone_times = train(alone, digits, steps, TOLD_IMAGES, folders[1])
    torch.manual_seed(seed)  # the same weights and batches again
    distilled = VisionTransformer(STUDENT_WIDTH, STUDENT_LAYERS)
    distilled_times = train(distilled, digits, steps, TOLD_IMAGES, folders[2], teacher)

    accuracies = [test_accuracy(net, digits) for net in (teacher, alone, distilled)]
    if farandole.rank() == 0:
        print("ms of a step, mean        data    forward   backward  optimizer")
        print_times("teacher", teacher_times)
        print_times("student alone", alone_times)
        print_times("distilled student", distilled_times)  # its forward has the teacher's in it
        print(
            f"accuracy on {TEST_IMAGES} test images: teacher {accuracies[0]:.1%}, "
            f"student alone {accuracies[1]:.1%}, distilled student {accuracies[2]:.1%}"
        )
    print(
        f"rank {farandole.rank()} of {farandole.world_size()}: "
        f"the distilled student's parameters sum to {parameter_sum(distilled):.12f}",
        flush=True,
    )


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("seed", nargs="?", type=int, default=0)
    parser.add_argument(
        "steps", nargs="?", type=int, default=STEPS, help="number of steps, 2 or more"
    )
    parser.add_argument(
        "--checkpoints", type=Path, help="folder of checkpoints, from which training resumes"
    )
    parser.add_argument("--export", type=Path, help="write the images to this file and exit")
    arguments = parser.parse_args()
    if arguments.export:
        arguments.export.write_bytes(read_rows().numpy().tobytes())
        return
    if arguments.steps < 2:
        parser.error(f"{arguments.steps} steps are too few: times are those of the second on")
    farandole.init_process_group()  # finds the others through torchrun's variables
    if BATCH % farandole.world_size():
        sys.exit(f"{BATCH} images cannot be shared equally by {farandole.world_size()} ranks")
    torch.set_num_threads(1)  # a core for each rank
    compare(Digits(read_rows()), arguments.seed, arguments.steps, arguments.checkpoints)
    farandole.destroy()


if __name__ == "__main__":
    main()
