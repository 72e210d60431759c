# SPDX-License-Identifier: Apache-2.0
"""Which threads of this program may call collectives."""

from __future__ import annotations

import threading

_HELPERS = (
    "multiprocessing.queues",
    "multiprocessing.resource_sharer",
    "tensorboard.",
    "torch.utils.data.",
    "tqdm.",
    "wandb.",
)
"""Modules whose threads call none."""
_OWN = "farandole-"
"""Begins the names of this library's threads, which call none of the program's groups."""


def may_others_call(thread: int) -> bool:
    """Whether a thread beside this one may call collectives.

    Args:
        thread: As threading.get_native_id() has it.
    """
    others = (each for each in threading.enumerate() if each.native_id != thread)
    return any(not _is_helper(each) for each in others)


def _is_helper(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)  # what it runs, unless its class has a run()
    modules = (type(thread).__module__, getattr(target, "__module__", None) or "")
    return thread.name.startswith(_OWN) or any(
        f"{module}.".startswith(_HELPERS) for module in modules
    )
