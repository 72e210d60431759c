# SPDX-License-Identifier: Apache-2.0
"""start_timeline() and stop_timeline()."""

from __future__ import annotations

from farandole.named.timeline import Timeline

from horovod.common.world import World, world


def start_timeline(file_path: str, mark_cycles: bool = False) -> None:
    """Record what all ranks ask for, and what rank 0 runs, in a file that rank 0 writes.

    A timeline that is being recorded ends; one in that file goes on. Other ranks tell rank 0 from
    then on when they ask, so call it on all.

    Raises:
        InvalidArgument: init() was not called.
        SystemError: the file cannot be written.
    """
    state = world()
    if state.rank != 0:
        record(state, None, tells_times=True)
    elif state.timeline is None or not state.timeline.is_at(file_path):
        record(state, Timeline(file_path, mark_cycles), tells_times=True)


def stop_timeline() -> None:
    """Write the rest, and record no more.

    Raises:
        InvalidArgument: init() was not called.
    """
    record(world(), None, tells_times=False)


def record(state: World, timeline: Timeline | None, *, tells_times: bool) -> None:
    """Let all process sets write to it, and end the one of before."""
    before, state.timeline, state.tells_times = state.timeline, timeline, tells_times
    for named in state.named.values():
        named.record(timeline, tells_times)
    if before is not None:
        before.close()
