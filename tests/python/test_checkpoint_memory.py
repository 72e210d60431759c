# SPDX-License-Identifier: Apache-2.0
"""How much memory a save and a load may take: limits of the process stand for a full machine."""

from __future__ import annotations

import re
import resource
from pathlib import Path

import farandole
import pytest
import torch
from farandole import ZeroRedundancyOptimizer
from torch import nn, optim

import ranks

MORE_BYTES = 64 << 20
"""Beyond what the training has; the state of a rank is more than that."""
LAYERS = 11 if ranks.WHOLE_MATRIX else 1
"""Of 64 MiB each: with AdamW's moments 2 GiB, or a tenth."""


def data_bytes() -> int:
    """Memory that the process may write to and shares with none, touched or not."""
    found = re.search(r"^VmData:\s+(\d+) kB", Path("/proc/self/status").read_text(), re.MULTILINE)
    assert found is not None
    return int(found[1]) * 1024


def allow(more_bytes: int) -> None:
    _, most = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (data_bytes() + more_bytes, most))


def _saves_and_loads(rank: int, size: int, path: str) -> None:
    net = nn.ModuleList(nn.Linear(4096, 4096, bias=False) for _ in range(LAYERS))
    optimizer = ZeroRedundancyOptimizer(net.parameters(), optim.AdamW, lr=0.5)
    for number, each in enumerate(net.parameters()):
        each.grad = torch.full_like(each, number + 1.0)
    optimizer.step()
    for each in net.parameters():
        each.grad = None
    kept = [each[::1000, ::1000].detach().clone() for each in net.parameters()]
    farandole.save_checkpoint(path, model=nn.Linear(2, 2))  # threads and buffers are there
    allow(MORE_BYTES)
    farandole.save_checkpoint(path, model=net, optimizer=optimizer, keep=1)
    with torch.no_grad():
        for each in net.parameters():
            each.zero_()
    allow(MORE_BYTES)
    farandole.load_checkpoint(path, model=net, optimizer=optimizer)
    with pytest.raises(RuntimeError):
        torch.empty(2 * MORE_BYTES, dtype=torch.uint8)  # the limit is one
    for each, value in zip(net.parameters(), kept, strict=True):
        assert torch.equal(each[::1000, ::1000], value)


def test_a_save_and_a_load_need_64_mib(tmp_path: Path) -> None:
    ranks.run(_saves_and_loads, 2, str(tmp_path), deadline_s=110)
