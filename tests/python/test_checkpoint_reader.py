# SPDX-License-Identifier: Apache-2.0
"""_C.CheckpointReader: any elements of any tensor, in any order."""

from __future__ import annotations

import contextlib
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
    for _ in range(300):
        number = order.randrange(len(SIZES))
        begin = order.randint(0, SIZES[number])
        count = order.randint(0, min(SIZES[number] - begin, 150_000))
        expected = whole(number)[begin : begin + count]
        assert torch.equal(reader.read(f"p{number}", begin, count), expected)
        reader.check(f"p{number}", begin, count)
        for dtype in (torch.float32, torch.float64):
            into = torch.full((count + 2,), -1, dtype=dtype)
            reader.read_into(f"p{number}", begin, into[1:-1])
            assert torch.equal(into[1:-1], expected.to(dtype))
            assert into[0] == into[-1] == -1
    for number in range(len(SIZES)):
        assert torch.equal(reader.read_whole(f"p{number}"), whole(number))
        for rank in range(3):
            reader.check_share(f"p{number}", rank, 3)
        into = torch.empty(2 * SIZES[number])[::2]
        version = into._version
        reader.read_whole_into(f"p{number}", into)
        assert torch.equal(into, whole(number))
        assert into._version > version
    with pytest.raises(farandole.InvalidArgument, match="into the shape"):
        reader.read_whole_into("p1", torch.empty(SIZES[1] + 1))
    for read in (reader.read, reader.check):
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


def test_each_block_is_compared_by_one_rank(saved: Path) -> None:
    readers = [_C.CheckpointReader(str(saved)) for _ in range(3)]
    file = saved / "rank-00000-of-00003.safetensors"
    data = file.read_bytes()
    file.write_bytes(data[:-5] + bytes([data[-5] ^ 1]) + data[-4:])
    finders = 0
    try:
        for rank, reader in enumerate(readers):
            with contextlib.suppress(CheckpointError):
                for key in reader.entries:
                    reader.check_share(key, rank, 3)
                continue
            finders += 1
    finally:
        file.write_bytes(data)
    assert finders == 1


def _is_whole(reader: _C.CheckpointReader, key: str) -> bool:
    try:
        reader.read_whole_into(key, torch.empty(reader.entries[key].shape))
    except CheckpointError:
        return False
    return True
