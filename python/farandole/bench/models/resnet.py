# SPDX-License-Identifier: Apache-2.0
"""ResNet (arXiv:1512.03385), with the stride in the 3 x 3 convolution as in torchvision."""

from __future__ import annotations

from torch import Tensor, nn
from torch.nn import functional


class Basic(nn.Module):
    """Two convolutions beside a short cut, of ResNet-18 and 34."""

    expansion = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut = shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        """`x`: (images, channels, height, width)."""
        return functional.relu(self.body(x) + self.shortcut(x))


class Bottleneck(nn.Module):
    """Three convolutions beside a short cut, of ResNet-50 and larger ones."""

    expansion = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        outputs = self.expansion * width
        self.body = nn.Sequential(
            nn.Conv2d(inputs, width, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, width, 3, stride, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(inplace=True),
            nn.Conv2d(width, outputs, 1, bias=False),
            nn.BatchNorm2d(outputs),
        )
        self.shortcut = shortcut(inputs, outputs, stride)

    def forward(self, x: Tensor) -> Tensor:
        """`x`: (images, channels, height, width)."""
        return functional.relu(self.body(x) + self.shortcut(x))


def shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    """A convolution where the shape changes."""
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    convolution = nn.Conv2d(inputs, outputs, 1, stride, bias=False)
    return nn.Sequential(convolution, nn.BatchNorm2d(outputs))


def resnet(
    width: int, depths: list[int], block: type[Basic | Bottleneck] = Bottleneck
) -> nn.Sequential:
    """ResNet-50 if `width` is 64 and `depths` 3, 4, 6, 3; 1000 classes."""
    layers: list[nn.Module] = [
        nn.Conv2d(3, width, 7, stride=2, padding=3, bias=False),
        nn.BatchNorm2d(width),
        nn.ReLU(inplace=True),
        nn.MaxPool2d(3, stride=2, padding=1),
    ]
    inputs = width
    for stage, depth in enumerate(depths):
        for place in range(depth):
            stride = 2 if stage > 0 and place == 0 else 1
            layers.append(block(inputs, width << stage, stride))
            inputs = block.expansion * width << stage
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(inputs, 1000)]
    return nn.Sequential(*layers)
