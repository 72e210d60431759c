# SPDX-License-Identifier: Apache-2.0
"""torch.autocast that also takes the names of dtypes."""

from __future__ import annotations

import torch

from farandole.errors import InvalidArgument, sentences

_BY_NAME = {
    "bfloat16": torch.bfloat16,
    "bf16": torch.bfloat16,
    "float16": torch.float16,
    "fp16": torch.float16,
    "half": torch.float16,
}


class autocast(torch.autocast):  # noqa: N801 (torch names it so)
    """Let operations on tensors of one type of device choose their dtype themselves.

    It is torch.autocast, as a context and as a decorator::

        with farandole.autocast("cpu", dtype="bf16"):
            loss = loss_of(model(x), y)
        loss.backward()

    Args:
        device_type: "cpu" or "cuda"; if None, the accelerator of this process, or else the CPU.
        dtype: Of matrix products and convolutions; also by name: "bfloat16", "torch.bfloat16",
            "bf16", "float16", "torch.float16", "fp16" or "half". If None, the one that is set for
            the device, at first bfloat16 on a CPU and float16 elsewhere.
        enabled: Whether it does anything.
        cache_enabled: Whether a parameter is cast once for all its uses.

    Raises:
        InvalidArgument: there is no such dtype.
    """

    def __init__(
        self,
        device_type: str | torch.device | None = None,
        dtype: torch.dtype | str | None = None,
        enabled: bool = True,
        cache_enabled: bool | None = None,
    ) -> None:
        super().__init__(_type_of(device_type), _dtype_of(dtype), enabled, cache_enabled)


def _type_of(device: str | torch.device | None) -> str:
    if device is None:
        accelerator = torch.accelerator.current_accelerator(check_available=True)
        return accelerator.type if accelerator is not None else "cpu"
    return device.type if isinstance(device, torch.device) else device


def _dtype_of(dtype: torch.dtype | str | None) -> torch.dtype | None:
    if not isinstance(dtype, str):
        return dtype
    found = _BY_NAME.get(dtype.lower().removeprefix("torch."))
    if found is None:
        raise InvalidArgument(
            sentences(
                "autocast-dtype",
                f"autocast got dtype={dtype!r}.",
                "under autocast, operations run in float16 or bfloat16.",
                'pass "bfloat16" or "float16"; to turn autocast off, pass enabled=False.',
            )
        )
    return found
