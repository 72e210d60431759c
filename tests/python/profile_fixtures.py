# SPDX-License-Identifier: Apache-2.0
"""Folders as the system monitor and the recorder write them, with faults as a test wants them."""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

START_S = 1_591_160_000
START_US = START_S * 1_000_000


def write_metrics(
    folder: Path,
    series: dict[tuple[str, str, str], list[float]],
    *,
    node: str = "algo-1",
    interval_s: float = 0.5,
    start_s: float = START_S,
) -> Path:
    """Values of (type, name, dimension), all series from the same time on."""
    hour = time.strftime("%Y%m%d%H", time.gmtime(start_s))
    path = folder / "system" / "incremental" / hour / f"{int(start_s)}.{node}.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        for i in range(max(map(len, series.values()))):
            for (kind, name, dimension), values in series.items():
                if i < len(values):
                    row = {"Type": kind, "Name": name, "Dimension": dimension, "Value": values[i]}
                    row |= {"NodeId": node, "Timestamp": start_s + i * interval_s}
                    file.write(json.dumps(row) + "\n")
    return path


def gpu(index: int, dimension: str = "GPUUtilization") -> tuple[str, str, str]:
    return "gpu", f"gpu{index}", dimension


def core(index: int, dimension: str = "CPUUtilization") -> tuple[str, str, str]:
    return "cpu", f"cpu{index}", dimension


class TimelineWriter:
    """The timeline of a rank, step by step."""

    def __init__(
        self,
        folder: Path,
        rank: int = 0,
        *,
        world_size: int = 2,
        node: str = "algo-1",
        offset_us: float = 0,
        start_us: float = START_US,
    ) -> None:
        self.now_us = 0.0
        self.rank = rank
        self.start_us = start_us
        self.path = folder / "framework" / "pevents" / "2020060304"
        self.path /= f"{START_US + 60_000_000}_{100 + rank}-{node}_pythontimeline.json"
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self.events: list[dict[str, Any]] = []
        self.add(
            name="process_name",
            ph="M",
            args={"name": f"rank {rank}", "start_time_since_epoch_in_micros": start_us},
        )
        place = {"rank": rank, "world_size": world_size, "local_rank": rank, "node": node}
        clock = {"clock_offset_us": offset_us, "clock_error_us": 30.1}
        self.add(name="farandole", ph="M", args={**place, "host": "name", **clock})

    def add(self, **event: Any) -> None:
        self.events.append({"pid": 100 + self.rank, **event})

    def span(self, cat: str, name: str, dur: float, **args: Any) -> None:
        """From now on; the time goes on by its duration."""
        self.add(name=name, cat=cat, ph="X", ts=self.now_us, dur=dur, tid=1, args=args)
        self.now_us += dur

    def step(
        self,
        number: int,
        *,
        data: float = 100,
        forward: float = 3000,
        backward: float = 6000,
        exposed: float = 100,
        optimizer: float = 800,
        latest: int = 0,
        mode: str = "TRAIN",
        gc: float = 0,
        workers: int | None = None,
    ) -> None:
        """A step with its parts, in microseconds."""
        self.span(
            "data", "dataloader", data, **({} if workers is None else {"num_workers": workers})
        )
        begin = self.now_us
        self.span("forward", "forward", forward)
        if gc:
            self.add(name="gc", cat="gc", ph="X", ts=self.now_us, dur=gc, tid=1, args={})
        self.span("backward", "backward", backward + gc)
        self.span("communication", "exposed_communication", exposed, latest_rank=latest)
        self.span("optimizer", "optimizer_step", optimizer)
        end = self.now_us
        args = {"step": number, "mode": mode}
        step = {"ph": "X", "ts": begin, "dur": end - begin, "tid": 1, "args": args}
        self.add(name="step", cat="step", **step)

    def save(self) -> Path:
        """Write the file, one event a line."""
        self.path.write_text("[\n" + ",\n".join(map(json.dumps, self.events)) + "\n]\n")
        return self.path


def write_steps(
    folder: Path,
    steps: int,
    times: Callable[[int, int], dict[str, Any]],
    *,
    ranks: int = 2,
    node: Callable[[int], str] = lambda rank: "algo-1",
) -> None:
    """Timelines of all ranks; ``times(rank, step)`` are arguments of `TimelineWriter.step`."""
    for rank in range(ranks):
        writer = TimelineWriter(folder, rank, world_size=ranks, node=node(rank))
        for step in range(steps):
            writer.step(step, **times(rank, step))
        writer.save()
