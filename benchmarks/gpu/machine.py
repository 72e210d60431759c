# SPDX-License-Identifier: Apache-2.0
"""What a result says about the accelerators that it was measured on."""

import subprocess

import torch

from benchmarks.gpu.accelerator import Accelerator
from benchmarks.harness.results import Row


def describe(accelerator: Accelerator) -> Row:
    """Fields of every row, beside those of benchmarks/harness/machine.py."""
    if accelerator.type != "cuda":
        return {"device": accelerator.type, "gpu": "simulated", "gpus": accelerator.count()}
    return {
        "device": accelerator.type,
        "gpu": torch.cuda.get_device_name(),
        "gpus": accelerator.count(),  # of this host
        "driver": driver(),
        "cuda": torch.version.cuda,
        "nccl": ".".join(map(str, torch.cuda.nccl.version())),  # type: ignore[no-untyped-call]
    }


def driver() -> str:
    """Its version, as nvidia-smi has it; "unknown" without that."""
    command = ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"]
    try:
        done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=30)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return done.stdout.splitlines()[0].strip()
