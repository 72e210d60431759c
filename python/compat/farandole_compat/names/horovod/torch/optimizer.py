# SPDX-License-Identifier: Apache-2.0
"""Horovod's DistributedOptimizer: farandole.named's optimizers, by Horovod's arguments."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterable, Sequence

import torch
from farandole.errors import InvalidArgument, NotSupported, sentences
from farandole.named.adasum_optimizer import AdasumOptimizer, adasum_optimizer
from farandole.named.averaging_optimizer import (
    AveragingOptimizer,
    AveragingOptions,
    averaging_optimizer,
)
from farandole.named.compression import Compressor
from torch import Tensor

from horovod.common.process_sets import ProcessSet, global_process_set, named_of
from horovod.torch.compression import Compression
from horovod.torch.running import Adasum, Average, op_name


def DistributedOptimizer(  # noqa: N802
    optimizer: torch.optim.Optimizer,
    named_parameters: Iterable[tuple[str, Tensor]] | None = None,
    compression: Compressor = Compression.none,
    backward_passes_per_step: int = 1,
    op: int = Average,
    gradient_predivide_factor: float = 1.0,
    num_groups: int = 0,
    groups: int | Sequence[Sequence[Tensor]] | None = None,
    sparse_as_dense: bool = False,
    process_set: ProcessSet = global_process_set,
) -> torch.optim.Optimizer:
    """An optimizer of the same class whose gradients are combined over the ranks. Collective."""
    if num_groups:
        warnings.warn("num_groups is the old name of groups.", DeprecationWarning, stacklevel=2)
        groups = num_groups if groups is None else groups
    _check(optimizer, compression, backward_passes_per_step, op, gradient_predivide_factor, groups)
    named = named_of(process_set)
    if op == Adasum and named.is_member and not named.stays_alone:
        if process_set is not global_process_set:
            raise NotSupported(
                sentences(
                    "horovod-adasum-set",
                    "DistributedOptimizer() got op=Adasum and a process set.",
                    "Horovod has Adasum for all ranks alone.",
                    "leave the process set out.",
                )
            )
        return adasum_optimizer(optimizer, named, named_parameters, compression)
    return averaging_optimizer(
        optimizer,
        AveragingOptions(
            named,
            compression=compression,
            passes_per_step=backward_passes_per_step,
            op=op_name(op),
            predivide=gradient_predivide_factor,
            groups=groups,
            sparse_as_dense=sparse_as_dense,
            names=named_parameters,
        ),
    )


def _check(
    optimizer: object,
    compression: object,
    passes: int,
    op: int,
    predivide: float,
    groups: int | Sequence[Sequence[Tensor]] | None,
) -> None:
    wrong = ""
    if not isinstance(optimizer, torch.optim.Optimizer):
        wrong = "the optimizer is none of torch's"
    elif isinstance(optimizer, (AdasumOptimizer, AveragingOptimizer)):
        wrong = "the optimizer is a DistributedOptimizer already"
    elif not (hasattr(compression, "compress") and hasattr(compression, "decompress")):
        wrong = f"compression is {compression!r}, and must be one of hvd.Compression"
    elif not isinstance(passes, int) or passes <= 0:
        wrong = f"backward_passes_per_step is {passes!r}, and must be a whole number > 0"
    elif predivide == 0.0 or not math.isfinite(predivide):
        wrong = f"gradient_predivide_factor is {predivide}"
    elif predivide != 1.0 and op != Average:
        wrong = "gradient_predivide_factor is not supported with op != Average"
    elif groups is not None and not isinstance(groups, (int, list, tuple)):
        wrong = "groups is neither a number nor a list of lists of parameters"
    elif isinstance(groups, int) and groups < 0:
        wrong = f"groups is {groups}, and must not be negative"
    elif not isinstance(groups, (int, type(None))) and any(
        not isinstance(each, Tensor) for group in groups for each in group
    ):
        wrong = "groups must consist of lists of parameters"
    if wrong:
        raise InvalidArgument(
            sentences(
                "horovod-optimizer",
                f"DistributedOptimizer(): {wrong}.",
                "gradients cannot be combined so.",
                "pass what it takes.",
            )
        )
