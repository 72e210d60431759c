# SPDX-License-Identifier: Apache-2.0
"""Forward in a lower precision over parameters that stay in theirs."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import torch
from torch import nn
from torch.distributed.utils import _cast_forward_inputs
from torch.func import functional_call
from torch.nn.parallel.distributed import _MixedPrecision as MixedPrecision

from farandole.ddp.comm_hooks import CommHook, compression_to

__all__ = ["MixedPrecision", "cast_buffers", "cast_inputs", "reduction_hook", "run"]


def cast_buffers(module: nn.Module, config: MixedPrecision, ignored: Collection[str]) -> None:
    """Give floating-point buffers their dtype, for good, as torch does."""
    if config.buffer_dtype is None:
        return
    for name, buffer in module.named_buffers():
        if name not in ignored and buffer.is_floating_point():
            buffer.data = buffer.to(config.buffer_dtype)


def reduction_hook(config: MixedPrecision) -> CommHook | None:
    """What sends gradients in ``reduce_dtype``, or else in ``param_dtype``."""
    return compression_to(config.reduce_dtype or config.param_dtype)


def cast_inputs(
    config: MixedPrecision, inputs: tuple[Any, ...], kwargs: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Floating-point tensors among the inputs as ``param_dtype``."""
    args, named = _cast_forward_inputs(config.param_dtype, *inputs, **kwargs)
    return tuple(args), dict(named)


def run(
    module: nn.Module,
    config: MixedPrecision,
    ignored: Collection[str],
    inputs: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Any:
    """Run forward with cast parameters; autograd casts the gradients back."""
    dtype: torch.dtype | None = config.param_dtype
    if dtype is None:
        return module(*inputs, **kwargs)
    cast = {
        name: parameter.to(dtype)
        for name, parameter in module.named_parameters()
        if name not in ignored and parameter.is_floating_point()
    }
    return functional_call(module, cast, inputs, kwargs)
