# SPDX-License-Identifier: Apache-2.0
"""Random flips of images and their masks.

examples/cpp/flips.h makes the same flips.
"""

from __future__ import annotations

import torch
from crops import DEVIATION, MEAN
from torch import Tensor
from torch.utils.data import Dataset


class Flips(Dataset[tuple[Tensor, Tensor]]):
    """Images and masks of another dataset, each way half of the time if `random`.

    A flip depends on the epoch and the index alone, as crops do.
    """

    def __init__(self, images: Dataset[tuple[Tensor, Tensor]], *, random: bool) -> None:
        self.images, self.random = images, random
        self.epoch = 0

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        image, mask = self.images[index]
        if self.random:
            generator = torch.Generator().manual_seed((self.epoch << 32) + index)
            across, down = (torch.rand(2, generator=generator) < 0.5).tolist()
            dims = [-1] * across + [-2] * down
            image, mask = image.flip(dims), mask.flip(dims)
        return (image - MEAN) / DEVIATION, mask
