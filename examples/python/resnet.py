# SPDX-License-Identifier: Apache-2.0
"""Residual networks for images (arXiv:1512.03385), begun as recipes for large batches do.

examples/cpp/resnet.h has the same networks, with the same names and first weights.
"""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn.functional import relu

LAYERS = {"resnet18": (2, 2, 2, 2), "resnet34": (3, 4, 6, 3), "resnet50": (3, 4, 6, 3)}


def convolution(inputs: int, outputs: int, size: int, stride: int = 1) -> nn.Conv2d:
    """Without a bias, as a batch normalization follows."""
    return nn.Conv2d(inputs, outputs, size, stride, padding=size // 2, bias=False)


class Block(nn.Module):
    """Convolutions whose result is added to the input: two, or three around a narrow one."""

    def __init__(self, inputs: int, width: int, stride: int, *, bottleneck: bool) -> None:
        super().__init__()
        outputs = 4 * width if bottleneck else width
        self.convs, self.norms = nn.ModuleList(), nn.ModuleList()
        if bottleneck:
            self.convs.append(convolution(inputs, width, 1))
            self.convs.append(convolution(width, width, 3, stride))
            self.convs.append(convolution(width, outputs, 1))
        else:
            self.convs.append(convolution(inputs, width, 3, stride))
            self.convs.append(convolution(width, width, 3))
        for conv in self.convs:
            self.norms.append(nn.BatchNorm2d(conv.out_channels))
        # So that a block adds nothing at first: arXiv:1706.02677, section 5.1.
        nn.init.zeros_(self.norms[-1].weight)
        self.shortcut = nn.Sequential()
        if stride != 1 or inputs != outputs:
            self.shortcut.append(convolution(inputs, outputs, 1, stride))
            self.shortcut.append(nn.BatchNorm2d(outputs))

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs, H, W) to (N, outputs, H / stride, W / stride)."""
        y = x
        for i, (conv, norm) in enumerate(zip(self.convs, self.norms, strict=True)):
            y = norm(conv(relu(y) if i else y))
        return relu(y + self.shortcut(x))


class ResNet(nn.Module):
    """Images to scores of their classes. The stride of a bottleneck is in its 3x3 convolution."""

    def __init__(self, model: str, classes: int) -> None:
        super().__init__()
        bottleneck = model == "resnet50"
        self.conv, self.norm = convolution(3, 64, 7, 2), nn.BatchNorm2d(64)
        self.pool = nn.MaxPool2d(3, 2, padding=1)
        self.blocks = nn.Sequential()
        channels = 64
        for stage, count in enumerate(LAYERS[model]):
            width = 64 << stage
            for i in range(count):
                stride = 2 if stage > 0 and i == 0 else 1
                self.blocks.append(Block(channels, width, stride, bottleneck=bottleneck))
                channels = 4 * width if bottleneck else width
        self.head = nn.Linear(channels, classes)
        for module in self.modules():
            if isinstance(module, nn.Conv2d):
                nn.init.kaiming_normal_(module.weight, mode="fan_out", nonlinearity="relu")
        nn.init.normal_(self.head.weight, std=0.01)
        nn.init.zeros_(self.head.bias)

    def forward(self, images: Tensor) -> Tensor:
        """(N, 3, H, W) to (N, classes)."""
        x = self.blocks(self.pool(relu(self.norm(self.conv(images)))))
        return self.head(x.mean((2, 3)))
