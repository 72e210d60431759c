# SPDX-License-Identifier: Apache-2.0
"""What this build has, in the words of Horovod."""

from __future__ import annotations

from typing import Any

import torch

import farandole
from farandole import _C


def has_backend(name: str) -> bool:
    """Whether this build has a backend: "shm", "mpi" or "nccl"."""
    return any(each.name == name and each.built for each in _C.backends())


def nccl_version() -> int:
    """As 22703 for 2.27.3; 0 if this build cannot use NCCL, or torch has none."""
    if not has_backend("nccl") or not torch.cuda.is_available():
        return 0
    version: Any = torch.cuda.nccl.version()  # type: ignore[no-untyped-call]
    major, minor, patch = (*version, 0, 0)[:3]
    return int(major * 10000 + minor * 100 + patch)


def check_build(version: str) -> str:
    """What `horovodrun --check-build` prints, with lines of its own for what Farandole is."""
    lines = [f"Horovod v{version}, by Farandole {farandole.__version__}:"]
    for title, rows in (
        ("Frameworks", {"TensorFlow": False, "PyTorch": True, "MXNet": False}),
        (
            "Controllers",
            {"MPI": has_backend("mpi"), "Gloo": False, "Farandole": True},
        ),
        (
            "Tensor Operations",
            {
                "NCCL": bool(nccl_version()),
                "DDL": False,
                "CCL": False,
                "MPI": has_backend("mpi"),
                "Gloo": False,
                "Farandole (shared memory and TCP)": True,
            },
        ),
    ):
        lines += ["", f"Available {title}:"]
        lines += [f"    [{'X' if is_there else ' '}] {name}" for name, is_there in rows.items()]
    return "\n".join(lines)
