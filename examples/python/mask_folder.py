# SPDX-License-Identifier: Apache-2.0
"""Images and masks in two folders, decoded by torchvision."""

from __future__ import annotations

import sys
from pathlib import Path

from torch import Tensor
from torch.nn.functional import interpolate
from torch.utils.data import Dataset


class MaskFolder(Dataset[tuple[Tensor, Tensor]]):
    """`path`/images/NAME.jpeg and `path`/masks/NAME.png, whose gray values are classes of pixels.

    Images become (3, side, side) in 0..1, masks (side, side) by the nearest pixel.
    """

    def __init__(self, path: Path, side: int, classes: int) -> None:
        self.images, self.masks = (
            sorted((path / part).glob("*.*")) for part in ("images", "masks")
        )
        self.side, self.classes = side, classes
        if not self.images or [p.stem for p in self.images] != [p.stem for p in self.masks]:
            sys.exit(f"{path}/images and {path}/masks must be there and have files of equal names.")
        try:
            from torchvision.io import ImageReadMode, decode_image
        except ImportError:
            sys.exit(
                "torchvision, which decodes the images of --data, is not installed. Install the "
                "one for this torch (pip install torchvision), or leave --data out to train on "
                "shapes."
            )
        self.decode, self.modes = decode_image, ImageReadMode

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        size = (self.side, self.side)
        image = self.decode(str(self.images[index]), mode=self.modes.RGB).float()[None] / 255
        image = interpolate(image, size, mode="bilinear", antialias=True)[0]
        mask = self.decode(str(self.masks[index]), mode=self.modes.UNCHANGED)[None, :1].float()
        mask = interpolate(mask, size, mode="nearest")[0, 0].long()
        if mask.max() >= self.classes:
            raise ValueError(
                f"{self.masks[index]} has a class {mask.max()}, and --classes is {self.classes}"
            )
        return image, mask
