# SPDX-License-Identifier: Apache-2.0
"""U-Net, which gives each pixel of an image the scores of its classes (arXiv:1505.04597).

examples/cpp/unet.h has the same network, with the same names and first weights.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn


class Convolutions(nn.Sequential):
    """Two of 3 x 3, each with a batch normalization and a ReLU; the size stays."""

    def __init__(self, inputs: int, outputs: int) -> None:
        layers: list[nn.Module] = []
        for channels in (inputs, outputs):
            layers.append(nn.Conv2d(channels, outputs, 3, padding=1, bias=False))
            layers += [nn.BatchNorm2d(outputs), nn.ReLU()]
        super().__init__(*layers)


class UNet(nn.Module):
    """Halves the size `depth` times and doubles it again, with what it saw at each size."""

    def __init__(self, classes: int, width: int, depth: int = 3) -> None:
        super().__init__()
        self.down, self.up, self.join = nn.ModuleList(), nn.ModuleList(), nn.ModuleList()
        widths = [width << i for i in range(depth + 1)]
        for i in range(depth):
            self.down.append(Convolutions(widths[i - 1] if i else 3, widths[i]))
        self.bottom = Convolutions(widths[depth - 1], widths[depth])
        for i in reversed(range(depth)):
            self.up.append(nn.ConvTranspose2d(widths[i + 1], widths[i], 2, stride=2))
            self.join.append(Convolutions(2 * widths[i], widths[i]))
        self.head = nn.Conv2d(width, classes, 1)

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, classes, H, W); 2 ** depth divides H and W."""
        seen, x = [], images
        for down in self.down:
            seen.append(down(x))
            x = nn.functional.max_pool2d(seen[-1], 2)
        x = self.bottom(x)
        for up, join in zip(self.up, self.join, strict=True):
            x = join(torch.cat([seen.pop(), up(x)], dim=1))
        return self.head(x)
