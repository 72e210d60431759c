# SPDX-License-Identifier: Apache-2.0
"""Images of shapes, drawn from their index: data for examples that need no download.

examples/cpp/shapes.h draws the same images.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.utils.data import Dataset

KINDS = ("circle", "triangle", "square", "star", "ring", "cross", "half moon", "bar")
NOISE = 0.1  # standard deviation; colours are 0 to 1


def polygon(sides: int, radius: Tensor, angle: Tensor) -> Tensor:
    """Whether points are within a regular polygon whose corners have radius 1."""
    half = math.pi / sides
    return radius * torch.cos(torch.remainder(angle, 2 * half) - half) < math.cos(half)


def inside(kind: int, x: Tensor, y: Tensor) -> Tensor:
    """Whether points are within a shape of radius 1 around the origin."""
    radius, angle = torch.sqrt(x * x + y * y), torch.atan2(y, x)
    within = radius < 1
    near, far = torch.minimum(x.abs(), y.abs()), torch.maximum(x.abs(), y.abs())
    return (
        within,
        polygon(3, radius, angle),
        polygon(4, radius, angle),
        radius < 0.6 + 0.4 * torch.cos(5 * angle),
        within & (radius > 0.6),
        (near < 0.3) & (far < 1),
        within & (y > 0),
        (x.abs() < 1) & (y.abs() < 0.3),
    )[kind]


def draw(
    kinds: list[int], side: int, generator: torch.Generator, spread: float = 0.3
) -> tuple[Tensor, Tensor]:
    """Bright shapes, each one upon those before it, on a dark ground with noise.

    `spread`: the part of the image, one way, in which their centres are.

    Returns the image, (3, side, side), and of each pixel the kind plus 1, or 0 for the ground.
    """
    axis = torch.arange(side, dtype=torch.float32) / side
    image = 0.5 * torch.rand((3, 1, 1), generator=generator).expand(3, side, side)
    mask = torch.zeros((side, side), dtype=torch.int64)
    for kind in kinds:
        numbers = torch.rand(7, generator=generator)
        column, row, size, turn = numbers[:4].tolist()
        x = axis[None, :] - (0.5 + spread * (column - 0.5))
        y = axis[:, None] - (0.5 + spread * (row - 0.5))
        radius, angle = 0.2 + 0.15 * size, 2 * math.pi * turn
        along = (math.cos(angle) / radius) * x + (math.sin(angle) / radius) * y
        across = (math.cos(angle) / radius) * y - (math.sin(angle) / radius) * x
        shape = inside(kind, along, across)
        image = torch.where(shape, 0.5 + 0.5 * numbers[4:, None, None], image)
        mask = torch.where(shape, kind + 1, mask)
    return image + NOISE * torch.randn((3, side, side), generator=generator), mask


class Shapes(Dataset[tuple[Tensor, int]]):
    """One shape in each image, and its kind. Other seeds give other images."""

    def __init__(self, count: int, side: int, seed: int) -> None:
        self.count, self.side, self.seed = count, side, seed

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        generator = torch.Generator().manual_seed((self.seed << 32) + index)
        kind = index % len(KINDS)
        return draw([kind], self.side, generator)[0], kind


class ShapeMasks(Dataset[tuple[Tensor, Tensor]]):
    """Several shapes in each image, and the class of each pixel: 0 is the ground."""

    def __init__(self, count: int, side: int, seed: int, shapes: int = 2) -> None:
        self.count, self.side, self.seed, self.shapes = count, side, seed, shapes

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed((self.seed << 32) + index)
        kinds = torch.randint(len(KINDS), (self.shapes,), generator=generator).tolist()
        return draw(kinds, self.side, generator, spread=0.6)
