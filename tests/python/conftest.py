# SPDX-License-Identifier: Apache-2.0
"""Leaves out the tests of what the torch that runs does not have; none leaves anything behind."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest
import torch.distributed as dist
from torch.distributed import ProcessGroup

SINCE_2_15 = ["test_hooks.py", "test_reconfigure.py", "test_windows.py"]

collect_ignore = [] if hasattr(ProcessGroup, "new_window") else SINCE_2_15


@pytest.fixture(autouse=True)
def _nothing_is_left() -> Iterator[None]:
    """Files share a process, in any order."""
    before = dict(os.environ)
    yield
    os.environ.clear()
    os.environ.update(before)
    if dist.is_initialized():
        dist.destroy_process_group()
        pytest.fail("this test leaves a process group behind")
