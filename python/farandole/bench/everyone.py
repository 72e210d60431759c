# SPDX-License-Identifier: Apache-2.0
"""What all ranks of a bench have."""

from __future__ import annotations

from typing import Any

import torch.distributed as dist


def from_all(value: Any) -> list[Any]:
    """The value of each rank, in rank order. Collective."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, value)
    return found
