# SPDX-License-Identifier: Apache-2.0
"""The timelines of all ranks in one file, for Perfetto and Chrome's tracing."""

from __future__ import annotations

import gzip
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from farandole.profiler.operators import content_of, trace_files
from farandole.profiler.profile import Profile
from farandole.profiler.timeline import RankTimeline


def export_chrome_trace(folder: str | os.PathLike[str], path: str | os.PathLike[str]) -> None:
    """Write what all ranks have recorded into one file, on the clock of rank 0.

    Each rank is a process. Operators and kernels of torch.profiler, where `start` recorded them,
    are processes of their own beside it.

    Args:
        folder: Where `start` has recorded, also of ranks that were killed or still run.
        path: Of the file, which ui.perfetto.dev and chrome://tracing open; compressed if it ends
            in ".gz".

    Raises:
        InvalidArgument: there is no such folder.
    """
    ranks = Profile(folder).timeline.ranks()
    start_us = min((rank.started_us for rank in ranks), default=0.0)
    to = Path(path)
    opened: IO[str] = gzip.open(to, "wt") if to.suffix == ".gz" else to.open("w")  # noqa: SIM115
    with opened as file:
        file.write("[")
        separator = "\n"
        for event in _events(Path(folder), ranks, start_us):
            file.write(separator + json.dumps(event, separators=(",", ":")))
            separator = ",\n"
        file.write("\n]\n")


def _events(folder: Path, ranks: list[RankTimeline], start_us: float) -> Iterator[dict[str, Any]]:
    world_size = max((rank.world_size for rank in ranks), default=0)
    for rank in ranks:
        yield from _process(rank.rank, f"rank {rank.rank} ({rank.node}, {rank.host})")
        for span in rank.spans():
            yield {
                "name": span.name,
                "cat": span.category,
                "ph": "X",
                "ts": round(span.start_us - start_us, 3),
                "dur": span.duration_us,
                "pid": rank.rank,
                "tid": span.thread,
                "args": span.args,
            }
    for number, trace in trace_files(folder):
        offsets = [rank.offset_at for rank in ranks if rank.rank == number]
        yield from _of_torch(trace, number, world_size + number, start_us, offsets)


def _process(pid: int, name: str) -> Iterator[dict[str, Any]]:
    yield {"name": "process_name", "ph": "M", "pid": pid, "args": {"name": name}}
    yield {"name": "process_sort_index", "ph": "M", "pid": pid, "args": {"sort_index": pid}}


def _of_torch(
    trace: Path, rank: int, pid: int, start_us: float, offsets: list[Any]
) -> Iterator[dict[str, Any]]:
    """The events of torch.profiler, moved to our time. Its base is nanoseconds since 1970."""
    content = content_of(trace, dict)
    base_us = content.get("baseTimeNanoseconds", 0) / 1000
    yield from _process(pid, f"rank {rank}: operators and kernels")
    for event in content.get("traceEvents", []):
        if not isinstance(event, dict):
            continue
        if event.get("ph") == "M" and not str(event.get("name", "")).startswith("thread"):
            continue  # its names of processes
        moved = {**event, "pid": pid}
        if "ts" in event:
            own_us = base_us + float(event["ts"])
            offset = offsets[0](own_us) if offsets else 0.0
            moved["ts"] = round(own_us + offset - start_us, 3)
        if "id" in event:
            moved["id"] = f"{rank}/{event['id']}"  # arrows stay within a rank
        yield moved
