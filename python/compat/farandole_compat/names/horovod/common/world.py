# SPDX-License-Identifier: Apache-2.0
"""What is between init() and shutdown()."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farandole.errors import InvalidArgument, sentences
from farandole.named import NamedCollectives, Settings

if TYPE_CHECKING:
    from horovod.common.process_sets import ProcessSet


@dataclass
class World:
    """All ranks, and the sets of them."""

    made_group: bool
    """Whether init() made torch's default group."""
    rank: int
    size: int
    local_rank: int = 0
    local_size: int = 1
    cross_rank: int = 0
    """This host among those that have a rank with this local rank."""
    cross_size: int = 1
    is_homogeneous: bool = True
    named: dict[int, NamedCollectives] = field(default_factory=dict)
    process_sets: dict[int, ProcessSet] = field(default_factory=dict)
    next_process_set: int = 1


current: World | None = None


def world() -> World:
    """That of now.

    Raises:
        InvalidArgument: init() was not called, or shutdown() was.
    """
    if current is None:
        raise InvalidArgument(
            sentences(
                "horovod-not-initialized",
                "Horovod has not been initialized; use hvd.init().",
                "hvd.init() has not been called in this process, or hvd.shutdown() was.",
                "call hvd.init() first.",
            )
        )
    return current


def settings_of_environment() -> Settings:
    """HOROVOD_* variables that say how operations wait and are joined."""
    plain = Settings()
    checks_stalls = os.environ.get("HOROVOD_STALL_CHECK_DISABLE", "0") in ("", "0")
    warning_s = _number("HOROVOD_STALL_CHECK_TIME_SECONDS", plain.stall_warning_s)
    shutdown_s = _number("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS", plain.stall_shutdown_s)
    return Settings(
        cycle_s=_number("HOROVOD_CYCLE_TIME", plain.cycle_s * 1000) / 1000,
        fusion_bytes=int(_number("HOROVOD_FUSION_THRESHOLD", plain.fusion_bytes)),
        capacity=int(_number("HOROVOD_CACHE_CAPACITY", plain.capacity)),
        stall_warning_s=warning_s if checks_stalls else 0.0,
        stall_shutdown_s=shutdown_s if checks_stalls else 0.0,
    )


def _number(name: str, default: float) -> float:
    text = os.environ.get(name, "")
    try:
        number = float(text) if text else default
    except ValueError:
        number = -1.0
    if number < 0:
        raise InvalidArgument(
            sentences(
                "horovod-variable",
                f"{name} is '{text}'.",
                "it takes a number that is not negative.",
                "set such a number, the same on all ranks.",
            )
        )
    return number
