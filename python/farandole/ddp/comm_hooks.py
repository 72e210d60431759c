# SPDX-License-Identifier: Apache-2.0
"""torch's communication hooks: which may be registered, and which Farandole registers itself."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch._C._distributed_c10d import BuiltinCommHookType, GradBucket
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

from farandole.errors import InvalidArgument, sentences

CommHook = Callable[[Any, GradBucket], torch.futures.Future[torch.Tensor]]

_TENSOR_FUTURE = torch.futures.Future[torch.Tensor]


def check_comm_hook(hook: object) -> None:
    """Check what torch checks of a hook, but for NCCL, which is not needed here.

    Raises:
        TypeError: it cannot be called.
        InvalidArgument: its annotations say that it is something else.
    """
    if not callable(hook):
        raise TypeError(
            sentences(
                "hook-not-callable",
                f"register_comm_hook() got a {type(hook).__name__} as its hook.",
                "a hook is called with its state and a bucket.",
                "pass a function hook(state, bucket) that returns a future of a tensor.",
            )
        )
    signature = inspect.signature(hook)
    bucket = signature.parameters.get("bucket")
    wrong = ""
    if bucket is None:
        wrong = "has no parameter named 'bucket'"
    elif bucket.annotation not in (inspect.Parameter.empty, GradBucket, "dist.GradBucket"):
        wrong = f"takes a bucket annotated {bucket.annotation}, not dist.GradBucket"
    elif signature.return_annotation not in (
        inspect.Signature.empty,
        _TENSOR_FUTURE,
        "torch.futures.Future[torch.Tensor]",
    ):
        wrong = f"returns {signature.return_annotation}"
    if wrong:
        raise InvalidArgument(
            sentences(
                "hook-annotations",
                f"the communication hook {name_of(hook)} {wrong}.",
                "it takes a dist.GradBucket and returns a torch.futures.Future[torch.Tensor].",
                "name its second parameter bucket, and annotate it with these types or not at all.",
            )
        )


def name_of(hook: object) -> str:
    """What a hook is called in logging data."""
    return str(getattr(hook, "__qualname__", type(hook).__qualname__))


def builtin_hook(kind: BuiltinCommHookType) -> CommHook:
    """The hook that torch means by ``kind``.

    Raises:
        InvalidArgument: there is none.
    """
    if kind == BuiltinCommHookType.ALLREDUCE:
        return default_hooks.allreduce_hook
    if kind == BuiltinCommHookType.FP16_COMPRESS:
        return default_hooks.fp16_compress_hook
    raise InvalidArgument(
        sentences(
            "builtin-hook",
            f"_register_builtin_comm_hook() got {kind!r}.",
            "built-in hooks are ALLREDUCE and FP16_COMPRESS.",
            "pass one of dist.BuiltinCommHookType, or call register_comm_hook().",
        )
    )


def compression_to(dtype: torch.dtype | None) -> CommHook | None:
    """The hook that sends gradients as ``dtype``; None where they are sent as they are."""
    if dtype == torch.float16:
        return default_hooks.fp16_compress_hook
    if dtype == torch.bfloat16:
        return default_hooks.bf16_compress_hook
    return None


def take_optimizers_in_backward(parameters: list[nn.Parameter]) -> CommHook | None:
    """The hook that steps the optimizers that _apply_optimizer_in_backward() gave to parameters.

    Their own hooks, which would step with the gradients of this rank alone, are removed.
    """
    if not any(hasattr(parameter, "_in_backward_optimizers") for parameter in parameters):
        return None
    from torch.distributed.optim import apply_optimizer_in_backward as module

    handles: Any = module.param_to_optim_hook_handle_map
    for parameter in parameters:
        for handle in handles.pop(parameter, []):
            handle.remove()
    return functools.wraps(default_hooks.allreduce_hook)(_allreduce_then_step)


def _allreduce_then_step(
    state: dist.ProcessGroup, bucket: GradBucket
) -> torch.futures.Future[torch.Tensor]:
    def step(future: torch.futures.Future[torch.Tensor]) -> torch.Tensor:
        averaged = future.value()
        for parameter, gradient in zip(bucket.parameters(), bucket.gradients(), strict=True):
            optimizers: list[torch.optim.Optimizer] = getattr(
                parameter, "_in_backward_optimizers", []
            )
            if optimizers:
                parameter.grad = gradient
            for optimizer in optimizers:
                optimizer.step()
                optimizer.zero_grad()
        return averaged

    return default_hooks.allreduce_hook(state, bucket).then(step)
