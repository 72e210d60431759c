# SPDX-License-Identifier: Apache-2.0
"""_C.CheckpointReader: any elements of any tensor, in any order."""

from __future__ import annotations

import random
from pathlib import Path

import farandole
import pytest
import torch
from farandole import _C, CheckpointError
from torch import nn

import ranks

SIZES = (1, 3, 70_000, 65_536, 5, 200_001, 3_000_000, 9)
"""Elements; checksums are of 65,536 of them, and from 2,097,152 on memory is not shared."""


def _saves(rank: int, size: int, path: str) -> None:
    net = nn.Module()
    for number in range(len(SIZES)):
        net.register_parameter(f"p{number}", nn.Parameter(whole(number)))
    farandole.save_checkpoint(path, model=net, rng=False)


def whole(number: int) -> torch.Tensor:
    return torch.arange(SIZES[number], dtype=torch.float32) + number


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("saved")
    ranks.run(_saves, 3, str(path))
    return path / "save-00000001"


def test_any_elements_are_read_in_any_order(saved: Path) -> None:
    reader = _C.CheckpointReader(str(saved))
    order = random.Random(7)
    staged = []
    for _ in range(300):
        number = order.randrange(len(SIZES))
        begin = order.randint(0, SIZES[number])
        count = order.randint(0, min(SIZES[number] - begin, 150_000))
        expected = whole(number)[begin : begin + count]
        assert torch.equal(reader.read(f"p{number}", begin, count), expected)
        staged.append((reader.stage(f"p{number}", begin, count), expected))
    for number in range(len(SIZES)):
        assert torch.equal(reader.read_whole(f"p{number}"), whole(number))
        staged.append((reader.stage_whole(f"p{number}"), whole(number)))
    assert all(torch.equal(own, expected) for own, expected in staged)
    for read in (reader.read, reader.stage):
        with pytest.raises(farandole.InvalidArgument, match="was asked for elements 2 to 4"):
            read("p1", 2, 2)
        with pytest.raises(farandole.InvalidArgument, match="was asked for 'p99'"):
            read("p99", 0, 0)


def test_a_damaged_block_is_refused_each_time(saved: Path) -> None:
    file = saved / "rank-00000-of-00003.safetensors"
    data = bytearray(file.read_bytes())
    reader = _C.CheckpointReader(str(saved))
    data[-5] ^= 1
    with file.open("r+b") as opened:
        opened.write(data)
    bad = [key for key in reader.entries if not _is_whole(reader, key)]
    assert bad
    assert bad == [key for key in reader.entries if not _is_whole(reader, key)]
    data[-5] ^= 1
    with file.open("r+b") as opened:
        opened.write(data)
    assert all(_is_whole(reader, key) for key in reader.entries)


def _is_whole(reader: _C.CheckpointReader, key: str) -> bool:
    try:
        reader.stage_whole(key)
    except CheckpointError:
        return False
    return True
