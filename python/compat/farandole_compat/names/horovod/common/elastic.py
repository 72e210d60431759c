# SPDX-License-Identifier: Apache-2.0
"""farandole.elastic's states, by Horovod's names."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from farandole import elastic
from farandole.elastic import HostUpdateResult, ObjectState, State

from horovod.common.exceptions import HostsUpdatedInterrupt

__all__ = ["HostUpdateResult", "HostsUpdatedInterrupt", "ObjectState", "State", "run_fn"]


def run_fn(func: Callable[..., Any], reset: Callable[[], None]) -> Callable[..., Any]:
    """Decorate a function that trains; ``reset`` ends the group and makes it anew."""
    return elastic.run(func, reset=reset)
