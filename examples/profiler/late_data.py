# SPDX-License-Identifier: Apache-2.0
"""A training that waits for its data: docs/stories.md shows how the report finds it.

    farandole run -n 2 examples/profiler/late_data.py before
    farandole run -n 2 examples/profiler/late_data.py after --workers 2
    farandole report --compare before after

A sample is an image that a store over a network sends after some milliseconds, and that the CPU
crops and scales. Workers wait for the store beside each other.
"""

from __future__ import annotations

import argparse
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1] / "python"))

import farandole
import torch
from resnet import LAYERS, ResNet
from torch import Tensor
from torch.nn.functional import cross_entropy, interpolate
from torch.utils.data import DataLoader, Dataset


class StoredImages(Dataset[tuple[Tensor, int]]):
    """Images of 500 x 400, which arrive after a while and are cropped and scaled to a square."""

    def __init__(self, samples: int, size: int, latency_ms: float) -> None:
        self.samples, self.size, self.latency_ms = samples, size, latency_ms
        self.image = torch.randint(256, (3, 400, 500), dtype=torch.uint8)

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        time.sleep(self.latency_ms / 1000)
        top, left = index % 100, index % 150
        crop = self.image[None, :, top : top + 300, left : left + 300].float() / 255
        image = interpolate(crop, (self.size, self.size), mode="bilinear", antialias=True)[0]
        return image, index % 1000


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("profile", help="the folder that the profile is written to")
    parser.add_argument("--workers", type=int, default=0, help="of each rank's DataLoader")
    parser.add_argument("--latency-ms", type=float, default=20, help="of the store")
    parser.add_argument("--model", choices=[*LAYERS], default="resnet18")
    parser.add_argument("--image-size", type=int, default=64)
    parser.add_argument("--batch", type=int, default=16, help="images of a rank in a step")
    parser.add_argument("--steps", type=int, default=30)
    return parser.parse_args()


def main() -> None:
    """Of each rank."""
    arguments = parse_arguments()
    farandole.init_process_group()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = torch.device("cuda", farandole.local_rank())
        torch.cuda.set_device(device)
    net = ResNet(arguments.model, 1000).to(device, memory_format=torch.channels_last)
    model = farandole.DistributedDataParallel(net)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    data = StoredImages(
        arguments.batch * arguments.steps, arguments.image_size, arguments.latency_ms
    )
    loader = DataLoader(
        data, arguments.batch, num_workers=arguments.workers, pin_memory=device.type == "cuda"
    )
    farandole.profiler.start(arguments.profile, system_interval_ms=100)
    begin = time.monotonic()
    for images, classes in loader:
        optimizer.zero_grad()
        with torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda"):
            scores = model(images.to(device, non_blocking=True))
        loss = cross_entropy(scores.float(), classes.to(device, non_blocking=True))
        loss.backward()
        optimizer.step()
    loss.item()  # all steps are over
    farandole.profiler.stop()
    if farandole.rank() == 0:
        images_per_s = farandole.world_size() * len(data) / (time.monotonic() - begin)
        print(f"{images_per_s:.0f} images/s with num_workers={arguments.workers}")
    farandole.destroy()


if __name__ == "__main__":
    main()
