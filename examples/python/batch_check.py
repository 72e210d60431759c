# SPDX-License-Identifier: Apache-2.0
"""Whether there are images for a step of all ranks."""

from __future__ import annotations

import sys

import farandole


def check_batch(batch: int, images: int, test_images: int) -> None:
    """Ends the program if ranks cannot share a step, or if no step or test would have images.

    `batch`: images of a step, over all ranks; `images`: those to learn from.
    """
    ranks = farandole.world_size()
    if batch < 1 or batch % ranks:
        sys.exit(f"--batch {batch}: {ranks} ranks cannot share it")
    if images < batch:
        sys.exit(f"--batch {batch}: there are only {images} images to learn from")
    if not test_images:
        sys.exit("There are no images to test with.")
