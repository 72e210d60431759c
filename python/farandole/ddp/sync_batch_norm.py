# SPDX-License-Identifier: Apache-2.0
"""Batch normalization with the mean and variance of the batches of all ranks, on any device."""

from __future__ import annotations

from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.distributed as dist
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from farandole import _C, arguments
from farandole.errors import InvalidArgument, sentences

_pass_weights: WeakKeyDictionary[nn.Module, _C.PassWeight] = WeakKeyDictionary()
"""Of the wrapper of each layer. Copies of a layer, and saved ones, have none."""


def set_pass_weight(module: nn.Module, weight: _C.PassWeight) -> None:
    """Let gradients of the layers in ``module`` count by the weights of their wrapper."""
    for each in module.modules():
        if isinstance(each, SyncBatchNorm):
            _pass_weights[each] = weight


class SyncBatchNorm(_BatchNorm):
    """torch.nn.SyncBatchNorm, which refuses tensors of the CPU, for tensors of any device.

    Batches count by their elements, so they may have different sizes, even none. Outside training,
    and in a group of one rank, it is plain batch normalization.

    Args:
        num_features: Channels: the second dimension of the input, which is [N, C, ...].
        process_group: Whose batches are one; the default group if None.
    """

    process_group: dist.ProcessGroup | None

    def __init__(
        self,
        num_features: int,
        eps: float = 1e-5,
        momentum: float | None = 0.1,
        affine: bool = True,
        track_running_stats: bool = True,
        process_group: dist.ProcessGroup | None = None,
        device: Any = None,
        dtype: torch.dtype | None = None,
    ) -> None:
        super().__init__(num_features, eps, momentum, affine, track_running_stats, device, dtype)
        self.process_group = process_group

    def _check_input_dim(self, input: Tensor) -> None:  # noqa: A002
        if input.dim() < 2:
            raise InvalidArgument(
                sentences(
                    "batch-norm-dimensions",
                    f"SyncBatchNorm got an input of {input.dim()} dimensions.",
                    "it normalizes the channels of [N, C, ...].",
                    "pass a batch of at least 2 dimensions.",
                )
            )

    def forward(self, input: Tensor) -> Tensor:  # noqa: A002
        """Normalize ``input``, [N, C, ...]. Collective in training.

        Raises:
            InvalidArgument: it has fewer than two dimensions.
        """
        self._check_input_dim(input)
        uses_batch = self.training or self.running_mean is None
        if not (uses_batch and self.training and self._world_size() > 1):
            return self._normalize_alone(input, uses_batch)
        group = arguments.group_of("SyncBatchNorm", self.process_group)
        output, mean, variance, count = _C.sync_batch_norm(
            input, self.weight, self.bias, self.eps, group, _pass_weights.get(self)
        )
        if self.track_running_stats:
            with torch.no_grad():
                self._track(mean, variance, float(count))
        return output

    def _world_size(self) -> int:
        if not dist.is_initialized():
            return 1
        return dist.get_world_size(self.process_group)

    def _normalize_alone(self, input: Tensor, uses_batch: bool) -> Tensor:  # noqa: A002
        momentum = self._count_batch() if self.training and self.track_running_stats else 0.0
        tracks = not self.training or self.track_running_stats
        return F.batch_norm(
            input,
            self.running_mean if tracks else None,
            self.running_var if tracks else None,
            self.weight,
            self.bias,
            uses_batch,
            momentum,
            self.eps,
        )

    def _count_batch(self) -> float:
        """Counts one batch; what it counts for in the running statistics."""
        if self.num_batches_tracked is not None:
            self.num_batches_tracked.add_(1)
        if self.momentum is not None:
            return self.momentum
        batches = self.num_batches_tracked
        return 0.0 if batches is None else 1.0 / float(batches)

    def _track(self, mean: Tensor, variance: Tensor, count: float) -> None:
        momentum = self._count_batch()
        unbiased = variance * (count / max(count - 1, 1))
        if self.running_mean is not None:
            self.running_mean.lerp_(mean.to(self.running_mean.dtype), momentum)
        if self.running_var is not None:
            self.running_var.lerp_(unbiased.to(self.running_var.dtype), momentum)

    @classmethod
    def convert_sync_batchnorm(
        cls, module: nn.Module, process_group: dist.ProcessGroup | None = None
    ) -> nn.Module:
        """Replace every batch normalization in ``module`` by one over the ranks.

        Parameters and buffers are kept, so optimizers that have them go on.

        Returns:
            ``module``, or its replacement if it is itself a batch normalization.
        """
        converted = module
        if isinstance(module, _BatchNorm) and not isinstance(module, cls):
            converted = cls._like(module, process_group)
        for name, child in module.named_children():
            converted.add_module(name, cls.convert_sync_batchnorm(child, process_group))
        return converted

    @classmethod
    def _like(cls, norm: _BatchNorm, group: dist.ProcessGroup | None) -> SyncBatchNorm:
        other = cls(
            norm.num_features,
            norm.eps,
            norm.momentum,
            norm.affine,
            norm.track_running_stats,
            group or getattr(norm, "process_group", None),
        )
        for name, parameter in norm.named_parameters(recurse=False):
            other.register_parameter(name, parameter)
        for name, buffer in norm.named_buffers(recurse=False):
            other.register_buffer(name, buffer)
        other.training = norm.training
        if hasattr(norm, "qconfig"):
            other.qconfig = norm.qconfig
        return other
