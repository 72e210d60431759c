# SPDX-License-Identifier: Apache-2.0
"""The lanes: ways to get gradients, the first without any communication."""

import os
from collections.abc import Callable
from functools import partial

from farandole import DistributedDataParallel
from torch import nn
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel

from benchmarks.harness.groups import Groups

Wrap = Callable[[nn.Module, Groups], nn.Module]


def plain(model: nn.Module, groups: Groups) -> nn.Module:  # noqa: ARG001
    """Without DDP: gradients stay on their rank."""
    return model


def ours(model: nn.Module, groups: Groups, bucket_mib: float | None = None) -> nn.Module:
    """Farandole's DDP."""
    return DistributedDataParallel(model, process_group=groups.farandole, bucket_cap_mb=bucket_mib)


def copied(model: nn.Module, groups: Groups) -> nn.Module:
    """Farandole's DDP without births: gradients are copied into their buckets."""
    os.environ["FARANDOLE_BORN_GRADIENTS"] = "0"
    try:
        return ours(model, groups)
    finally:
        del os.environ["FARANDOLE_BORN_GRADIENTS"]


def over_gloo(model: nn.Module, groups: Groups, *, view: bool) -> nn.Module:
    """DDP of torch over gloo, with and without gradients that lie in its buckets."""
    return TorchDistributedDataParallel(
        model, process_group=groups.gloo, gradient_as_bucket_view=view
    )


def over_farandole(model: nn.Module, groups: Groups) -> nn.Module:
    """DDP of torch over Farandole's backend."""
    return TorchDistributedDataParallel(
        model, process_group=groups.farandole, gradient_as_bucket_view=True
    )


WAYS: dict[str, Wrap] = {
    "alone": plain,  # rank 0 only, while the others sleep
    "local": plain,
    "farandole": ours,
    "torch_gloo_view": partial(over_gloo, view=True),
    "torch_gloo": partial(over_gloo, view=False),
    "torch_farandole": over_farandole,
    "farandole_copied": copied,
}


def wrap_of(lane: str) -> Wrap:
    """`lane` is a name in WAYS, or "farandole@" and the MiB of a bucket."""
    name, _, mib = lane.partition("@")
    return partial(ours, bucket_mib=float(mib)) if mib else WAYS[name]
