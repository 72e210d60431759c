# SPDX-License-Identifier: Apache-2.0
"""Objects of Python between ranks, which trust each other: they are pickled."""

from __future__ import annotations

import importlib
import pickle
from typing import Any

import torch
from torch import Tensor

from farandole.named import operations
from farandole.named.handle import Handle
from farandole.named.named_collectives import NamedCollectives


def broadcast_object(
    named: NamedCollectives, value: Any, root: int, name: str | None = None
) -> Any:
    """The object of rank ``root``, which returns its own."""
    is_root = named.is_member and named.rank == root
    data = _bytes_of(value) if is_root else torch.empty(0, dtype=torch.uint8, device="cpu")
    size = torch.tensor([data.numel()], device="cpu")
    _wait(named, operations.broadcast(named, size, root, _sub_name(name, "size"), in_place=True))
    if not is_root:
        data = torch.empty(int(size), dtype=torch.uint8, device="cpu")
    _wait(named, operations.broadcast(named, data, root, _sub_name(name, "data"), in_place=True))
    return value if is_root else pickle.loads(data.numpy().tobytes())


def all_gather_object(named: NamedCollectives, value: Any, name: str | None = None) -> list[Any]:
    """Those of all ranks, in rank order."""
    data = _bytes_of(value)
    size = torch.tensor([data.numel()], device="cpu")
    sizes = operations.all_gather(named, [size], _sub_name(name, "size"))
    everything = operations.all_gather(named, [data], _sub_name(name, "data"), will_wait=True)
    parts = torch.split(_wait(named, everything), _wait(named, sizes).tolist())
    return [pickle.loads(part.numpy().tobytes()) for part in parts]


def _wait(named: NamedCollectives, handle: Handle) -> Tensor:
    return named.wait(handle)[0]


def _sub_name(name: str | None, part: str) -> str | None:
    return None if name is None else f"{name}.{part}"


def _bytes_of(value: Any) -> Tensor:
    """Pickled by cloudpickle where it is installed, which also takes functions of the program."""
    try:
        writer: Any = importlib.import_module("cloudpickle")
    except ImportError:
        writer = pickle
    return torch.frombuffer(bytearray(writer.dumps(value)), dtype=torch.uint8)
