# SPDX-License-Identifier: Apache-2.0
"""Which tensors a checkpoint can have."""

from __future__ import annotations

import torch

from farandole import _C
from farandole.errors import InvalidArgument, sentences


def check_tensor(key: str, tensor: torch.Tensor) -> None:
    """Raise InvalidArgument unless a tensor has elements, all of them and here."""
    kind, fix = "", ""
    if torch.nn.parameter.is_lazy(tensor):
        kind, fix = "has no shape yet", "run a forward first, which makes it."
    elif hasattr(tensor, "device_mesh"):
        kind, fix = "is a DTensor", "use torch.distributed.checkpoint for it."
    if not kind:
        _C.check_tensor(key, tensor)
        return
    raise InvalidArgument(
        sentences(
            "checkpoint-tensor",
            f"a checkpoint got '{key}', which {kind}.",
            "a checkpoint takes tensors whose elements are all in the memory of their rank.",
            fix,
        )
    )
