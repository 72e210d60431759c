# SPDX-License-Identifier: Apache-2.0
"""Leaves out the tests of what the torch that runs does not have."""

from __future__ import annotations

from torch.distributed import ProcessGroup

SINCE_2_15 = ["test_hooks.py", "test_reconfigure.py", "test_windows.py"]

collect_ignore = [] if hasattr(ProcessGroup, "new_window") else SINCE_2_15
