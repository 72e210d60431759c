# SPDX-License-Identifier: Apache-2.0
"""Random resized crops and flips to learn from, crops of the centre to test with.

examples/cpp/crops.h takes the same crops.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import Dataset

MEAN, DEVIATION = 0.5, 0.25  # of colours 0 to 1


def resize(image: Tensor, height: int, width: int) -> Tensor:
    """(3, height, width), smoothed where it becomes smaller."""
    if image.shape[1:] == (height, width):
        return image
    return interpolate(image[None], (height, width), mode="bilinear", antialias=True)[0]


def random_resized_crop(
    image: Tensor, size: int, smallest: float, generator: torch.Generator
) -> Tensor:
    """A part that has `smallest` to 1 of the area, 3:4 to 4:3, flipped half of the time.

    Szegedy et al. 2014, arXiv:1409.4842, section 6; ten tries, then the largest square.
    """
    height, width = image.shape[1:]
    tries = torch.rand((10, 4), generator=generator).tolist()
    flip = tries[0][3] < 0.5
    for area, shape, row, column in tries:
        pixels = height * width * (smallest + (1 - smallest) * area)
        ratio = math.exp((2 * shape - 1) * math.log(4 / 3))
        rows, columns = round(math.sqrt(pixels / ratio)), round(math.sqrt(pixels * ratio))
        if 0 < rows <= height and 0 < columns <= width:
            top, left = int(row * (height - rows + 1)), int(column * (width - columns + 1))
            break
    else:
        rows = columns = min(height, width)
        top, left = (height - rows) // 2, (width - columns) // 2
    part = resize(image[:, top : top + rows, left : left + columns], size, size)
    return part.flip(2) if flip else part


def center_crop(image: Tensor, size: int) -> Tensor:
    """The centre, 7/8 of the shorter side."""
    side = size * 8 // 7
    height, width = image.shape[1:]
    scale = side / min(height, width)
    image = resize(image, round(height * scale), round(width * scale))
    top, left = (image.shape[1] - size) // 2, (image.shape[2] - size) // 2
    return image[:, top : top + size, left : left + size]


class Crops(Dataset[tuple[Tensor, int]]):
    """Images of one size, made from those of another dataset.

    A random crop depends on the epoch and the index alone: a training that goes on in the middle
    of an epoch sees what it would have seen, on any number of ranks and workers.
    """

    def __init__(
        self, images: Dataset[tuple[Tensor, int]], size: int, smallest: float | None = None
    ) -> None:
        """`smallest`: the smallest area of random crops; None: the centre."""
        self.images, self.size, self.smallest = images, size, smallest
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        image, label = self.images[index]
        if self.smallest is None:
            image = center_crop(image, self.size)
        else:
            generator = torch.Generator().manual_seed((self.epoch << 32) + index)
            image = random_resized_crop(image, self.size, self.smallest, generator)
        return (image - MEAN) / DEVIATION, label
