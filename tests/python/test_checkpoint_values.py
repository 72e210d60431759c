# SPDX-License-Identifier: Apache-2.0
"""Python values as JSON (farandole.checkpoint.tree)."""

from __future__ import annotations

import json
import math
from collections import Counter, OrderedDict
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
from farandole import CheckpointError, InvalidArgument
from farandole.checkpoint import tree
from torch import Tensor, nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

import ranks

VALUES = [
    None,
    True,
    0,
    -(2**63),
    2**63,
    10**40,
    1.5,
    -0.0,
    math.inf,
    1 - 2j,
    "text äöü 𝄞 \x00",
    b"\x00\xff",
    [],
    (),
    {},
    set(),
    [1, (2, [3, {"a": None}])],
    {"a": 1, "b": {"!tuple": [1]}},
    {1: "one", (2, "x"): [4], None: 0, False: 1.5},
    {"!tensor": "no tensor"},
    Counter({3: 2, 5: 1}),
    torch.bfloat16,
    torch.device("cpu", 0),
    {1, 2, "three"},
    frozenset({1, frozenset({2})}),
    {frozenset({1}): 2},
    10**5000,
]


def there_and_back(value: Any) -> Any:
    return tree.decode(json.loads(json.dumps(tree.encode(value, "value"))), lambda key: key)


@pytest.mark.parametrize("value", VALUES, ids=range(len(VALUES)))
def test_values_come_back(value: Any) -> None:
    got = there_and_back(value)
    assert got == value
    assert type(got) is type(value)
    if not isinstance(value, int):
        assert repr(got) == repr(value)


def test_nan_and_ordered_dictionaries_come_back() -> None:
    assert math.isnan(there_and_back(math.nan))
    got = there_and_back(OrderedDict(b=1, a=2))
    assert list(got.items()) == [("b", 1), ("a", 2)]


@pytest.mark.parametrize(
    "tensor",
    [
        torch.tensor(3.5),
        torch.arange(6).reshape(2, 3).t(),
        torch.zeros(0, 4, dtype=torch.int8),
        torch.tensor([True, False]),
        torch.tensor([1 + 2j]),
        torch.tensor([0.1], dtype=torch.bfloat16),
    ],
    ids=repr,
)
def test_small_tensors_come_back(tensor: torch.Tensor) -> None:
    got = there_and_back(tensor)
    assert got.dtype == tensor.dtype
    assert torch.equal(got, tensor)


def test_other_objects_are_named() -> None:
    for value in (object(), [1, {"a": lambda: 0}], {"a": (1, type)}):
        with pytest.raises(InvalidArgument, match="value"):
            tree.encode(value, "value")


def test_what_has_itself_within_it_is_refused() -> None:
    own: list[Any] = []
    own.append(own)
    with pytest.raises(InvalidArgument, match="contains itself"):
        tree.encode(own, "value")


def view_bits(rank: int, world_size: int, path: str) -> None:
    model = nn.Module()
    for name, view in (
        ("conj", torch.tensor([1 + 2j, 3 - 1j]).conj()),
        ("neg", torch._neg_view(torch.tensor([1.0, -2.0]))),
    ):
        model.register_buffer(name, view)
    farandole.save_checkpoint(path, model=model)
    before = [each.resolve_conj().resolve_neg().clone() for each in model.buffers()]
    for each in model.buffers():
        each.zero_()
    farandole.load_checkpoint(path, model=model)
    for each, wanted in zip(model.buffers(), before, strict=True):
        assert torch.equal(each, wanted)


def test_views_with_a_conjugate_or_negative_bit_come_back(tmp_path: Path) -> None:
    ranks.run(view_bits, 2, str(tmp_path))


def reserved(rank: int, world_size: int, path: str) -> None:
    model = nn.Module()
    model.register_parameter("__metadata__", nn.Parameter(torch.ones(2)))
    for asynchronous in (False, True):
        with pytest.raises(CheckpointError, match="with the name '__metadata__'"):
            farandole.save_checkpoint(path, model=model, asynchronous=asynchronous)
    assert not Path(path, "latest").exists()


def test_a_name_that_safetensors_has_is_refused(tmp_path: Path) -> None:
    ranks.run(reserved, 2, str(tmp_path))


def refused_tensors() -> list[tuple[Tensor, str]]:
    mesh = init_device_mesh("cpu", (1,))
    return [
        (nn.LazyLinear(3).weight, "has no shape yet"),
        (torch.ones(3, device="meta"), "is on the meta device"),
        (torch.eye(3).to_sparse(), "is sparse"),
        (torch.quantize_per_tensor(torch.ones(4), 0.5, 0, torch.qint8), "is quantized"),
        (DTensor.from_local(torch.ones(2, 2), mesh, [Shard(0)]), "is a DTensor"),
    ]


def refuse_tensors(rank: int, world_size: int, path: str) -> None:
    for tensor, kind in refused_tensors():
        model = nn.Linear(2, 2)
        model.register_buffer("other", tensor)
        with pytest.raises(InvalidArgument, match=f"'other', which {kind}"):
            farandole.save_checkpoint(path, model=model)
        with pytest.raises(InvalidArgument, match=kind):
            farandole.save_checkpoint(path, values={"own": tensor})
    # Nor is anything loaded into them: it would be lost in silence.
    farandole.save_checkpoint(path, model=nn.Linear(2, 3))
    for model, kind in (
        (nn.LazyLinear(3), "has no shape yet"),
        (nn.Linear(2, 3).to("meta"), "is on the meta device"),
    ):
        with pytest.raises(InvalidArgument, match=kind):
            farandole.load_checkpoint(path, model=model)


def test_tensors_without_elements_of_their_own_are_refused(tmp_path: Path) -> None:
    ranks.run(refuse_tensors, 1, str(tmp_path))
