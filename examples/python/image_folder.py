# SPDX-License-Identifier: Apache-2.0
"""Images in a folder for each class, decoded by torchvision."""

from __future__ import annotations

import sys
from pathlib import Path

from torch import Tensor
from torch.utils.data import Dataset


def image_folder(path: Path) -> Dataset[tuple[Tensor, int]]:
    """Images, (3, height, width) in 0..1 and of different sizes, and the number of their class.

    `path` has a folder for each class. `dataset.classes` has their names.
    """
    if not path.is_dir():
        sys.exit(f"{path} is not a folder. Images are expected in {path}/CLASS/NAME.jpeg.")
    try:
        from torchvision.datasets import ImageFolder
        from torchvision.transforms.functional import to_tensor
    except ImportError:
        sys.exit(
            "torchvision, which decodes the images of --data, is not installed. Install the one "
            "for this torch (pip install torchvision), or leave --data out to train on shapes."
        )
    return ImageFolder(path, transform=to_tensor)
