# SPDX-License-Identifier: Apache-2.0
"""start_timeline() and stop_timeline()."""

from __future__ import annotations

from farandole.named.timeline import Timeline

from horovod.common.world import World, world


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Record what all ranks ask for, and what rank 0 runs, in a file that rank 0 writes.

    A timeline that is being recorded ends; one in that file goes on. On other ranks it does
    nothing.

    Raises:
        InvalidArgument: init() was not called.
        SystemError: the file cannot be written.
    """
    state = world()
    if state.rank == 0 and not (state.timeline and state.timeline.is_at(file_path)):
        record(state, Timeline(file_path, mark_cycles))


def stop_timeline() -> None:
    """Write the rest, and record no more.

    Raises:
        InvalidArgument: init() was not called.
    """
    record(world(), None)


def record(state: World, timeline: Timeline | None) -> None:
    """Let all process sets write to it, and end the one of before."""
    before, state.timeline = state.timeline, timeline
    for named in state.named.values():
        named.record(timeline)
    if before is not None:
        before.close()
