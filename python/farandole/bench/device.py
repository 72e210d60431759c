# SPDX-License-Identifier: Apache-2.0
"""Which device tensors are on: the CPU, or the GPU of the rank."""

from __future__ import annotations

import torch

from farandole import _C
from farandole.errors import NotSupported, sentences


def device_of(asked: str | None) -> str:
    """Name the kind of device, "cpu" or "cuda": GPUs where there are some, unless it was asked for.

    Raises:
        NotSupported: CUDA is asked for and not there.
    """
    if asked is None:
        return "cuda" if torch.cuda.is_available() else "cpu"
    if asked == "cuda" and not torch.cuda.is_available():
        raise NotSupported(
            sentences(
                "bench-no-gpu",
                "--device cuda was asked for.",
                "torch.cuda.is_available() is false here: no GPU, no driver, or a torch without "
                "CUDA.",
                "pass --device cpu, or look at nvidia-smi and torch.version.cuda.",
            )
        )
    return asked


def own_device(kind: str) -> torch.device:
    """The device of this rank, made the current one: ranks of a host take its GPUs in turn."""
    if kind == "cpu":
        return torch.device("cpu")
    device = torch.device("cuda", _C.find_launch().local_rank % torch.cuda.device_count())
    torch.cuda.set_device(device)
    return device


def synchronize(device: torch.device) -> None:
    """Wait until a device has done what was enqueued; the CPU has."""
    if device.type == "cuda":
        torch.cuda.synchronize()
