# SPDX-License-Identifier: Apache-2.0
"""The pauses of Python's garbage collector, for the recorder."""

from __future__ import annotations

import gc
from typing import Any

from farandole import _C

_begin_ns = 0


def _note(phase: str, info: dict[str, Any]) -> None:
    """What the collector calls: it stops the thread that allocates, and no other one collects."""
    global _begin_ns
    if phase == "start":
        _begin_ns = _C.now_ns()
    elif _begin_ns:
        _C.emit_garbage(info["generation"], _begin_ns)


def watch() -> None:
    """Record collections from now on."""
    if _note not in gc.callbacks:
        gc.callbacks.append(_note)


def leave() -> None:
    """End that."""
    if _note in gc.callbacks:
        gc.callbacks.remove(_note)
