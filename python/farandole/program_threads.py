# SPDX-License-Identifier: Apache-2.0
"""Which threads of this program may call collectives."""

from __future__ import annotations

import os
import sys
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
    if _runs_functions_of_peers():
        return True
    others = (each for each in threading.enumerate() if _native_id(each) != thread)
    return any(not _is_helper(each) for each in others)


def _runs_functions_of_peers() -> bool:
    # on threads that Python does not list
    rpc = sys.modules.get("torch.distributed.rpc")
    return rpc is not None and bool(rpc._is_current_rpc_agent_set())


def _native_id(thread: threading.Thread) -> int | None:
    # os.fork() leaves that of the parent in the main thread's object
    return os.getpid() if thread is threading.main_thread() else thread.native_id


def _is_helper(thread: threading.Thread) -> bool:
    target = getattr(thread, "_target", None)  # what it runs, unless its class has a run()
    modules = (type(thread).__module__, getattr(target, "__module__", None) or "")
    return thread.name.startswith(_OWN) or any(
        f"{module}.".startswith(_HELPERS) for module in modules
    )
