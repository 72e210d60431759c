# SPDX-License-Identifier: Apache-2.0
"""What is between init() and shutdown()."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from farandole.errors import InvalidArgument, sentences
from farandole.named import NamedCollectives, Settings
from farandole.named.timeline import Timeline

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
    settings: Settings = field(default_factory=Settings)
    timeline: Timeline | None = None
    """What is recorded, on rank 0."""
    tells_times: bool = False
    """Whether rank 0 is told when this rank asks."""


current: World | None = None
everyone: NamedCollectives | None = None
"""Those of all ranks. Optimizers have them, so they outlive shutdown() and are opened again."""


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
