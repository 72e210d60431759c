# SPDX-License-Identifier: Apache-2.0
"""Horovod's elastic interface: farandole.elastic's, by Horovod's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import farandole

from horovod.common.elastic import ObjectState, State, run_fn
from horovod.torch.elastic.sampler import ElasticSampler
from horovod.torch.elastic.state import TorchState
from horovod.torch.mpi_ops import init, shutdown

__all__ = ["ElasticSampler", "ObjectState", "State", "TorchState", "init", "run", "shutdown"]


def run(func: Callable[..., Any]) -> Callable[..., Any]:
    """Decorate a function that trains, whose first argument is a State; see farandole.elastic."""
    return run_fn(func, _reset)


def _reset() -> None:
    shutdown()
    farandole.destroy()  # also a group that the program has made: its ranks are gone
    init()
