# SPDX-License-Identifier: Apache-2.0
"""What torch.distributed.checkpoint.state_dict wants of an optimizer.

get_optimizer_state_dict() and its like call state_dict() as a program does, without arguments. For
a program that is an error on ranks without the whole state. For these functions each rank returns
its shards, or with full_state_dict=True whole tensors. So state_dict() looks who has called it.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass

from farandole.errors import NotSupported, sentences

_MODULE = "torch.distributed.checkpoint.state_dict"
_MOST_FRAMES = 12
"""Between it and state_dict(), of wrappers as Accelerate's."""


@dataclass(frozen=True)
class Wanted:
    """What the options of the call say."""

    whole: bool
    """Whole tensors, in place of shards."""
    on_rank_0: bool
    """There alone."""


READS_NAMES = "_unflatten_optim_state_dict"
"""Reads the state of each parameter to know what is in one that is flattened."""


def wanted_by_torch() -> Wanted | None:
    """What a function of torch wants that has called state_dict(); None if none has."""
    if _MODULE not in sys.modules:
        return None
    frame = sys._getframe(1)
    for _ in range(_MOST_FRAMES):
        if frame.f_globals.get("__name__") == _MODULE:
            options = frame.f_locals.get("info")
            whole = getattr(options, "full_state_dict", None)
            on_cpu = getattr(options, "cpu_offload", None)
            if whole is None or on_cpu is None:
                raise _unknown()
            return Wanted(whole, whole and on_cpu)
        if frame.f_back is None:
            return None
        frame = frame.f_back
    return None


def _unknown() -> NotSupported:
    return NotSupported(
        sentences(
            "torch-state-dict",
            "torch.distributed.checkpoint.state_dict called state_dict() in a way that is not "
            "known.",
            "this version of torch does not say there whether it wants shards or whole tensors.",
            "call consolidate_state_dict() and state_dict(), or save_checkpoint().",
        )
    )


def reader_of_state() -> str | None:
    """The function of torch's that reads an optimizer's attribute "state"; None if none does.

    To be called by what the class of the optimizer has in place of that attribute.
    """
    frame = sys._getframe(2)
    return frame.f_code.co_name if frame.f_globals.get("__name__") == _MODULE else None
