# SPDX-License-Identifier: Apache-2.0
"""Which variables of this process the ranks of other hosts get, whatever starts them."""

from __future__ import annotations

_BEGINNINGS = ("OMP_", "MKL_", "KMP_", "GOMP_", "TORCH_", "PYTHON", "HOROVOD_", "NCCL_")


def passes_by_itself(name: str) -> bool:
    """Whether all ranks get a variable unasked; FARANDOLE_HOST_ID names one host."""
    ours = name.startswith("FARANDOLE_") and name != "FARANDOLE_HOST_ID"
    return ours or name.startswith(_BEGINNINGS) or name in ("MASTER_ADDR", "MASTER_PORT")
