# SPDX-License-Identifier: Apache-2.0
"""Operators and kernels, from torch.profiler: files beside the timeline."""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import torch

from farandole.errors import InvalidArgument, sentences
from farandole.foreign_text import json_of
from farandole.logs import LOGGER

FOLDER = "framework/torch"
"""Below an output folder: <rank>_<first step>_trace.json (Chrome's format), ..._operators.json."""


_NUMBERS = ("count", "self_us", "total_us")
_Content = TypeVar("_Content", dict[str, Any], list[Any])


class Operator(NamedTuple):
    """Of all ranks and windows that were recorded."""

    name: str
    device: str
    """"cpu" for operators, "cuda" and so on for kernels."""
    calls: int
    self_us: float
    """Without what it calls."""
    total_us: float


def profile(
    folder: Path, rank: int, schedule: Callable[[int], torch.profiler.ProfilerAction]
) -> torch.profiler.profile:
    """A profiler of torch that writes into ``folder`` at the end of each active window."""

    def write(ended: torch.profiler.profile) -> None:
        try:
            _write(ended, folder / FOLDER, f"{rank}_{ended.step_num}")
        except (OSError, RuntimeError) as error:  # what cannot be written does not end a training
            LOGGER.warning("profiler: operators of a window are not recorded: %s", error)

    return torch.profiler.profile(schedule=schedule, on_trace_ready=write)


def _write(ended: torch.profiler.profile, to: Path, name: str) -> None:
    """Files have their names when they are whole: a process may be killed."""
    to.mkdir(parents=True, exist_ok=True)
    trace = to / f"{name}_trace.tmp.json"
    ended.export_chrome_trace(str(trace))
    trace.rename(to / f"{name}_trace.json")
    rows = [_row(event) for event in ended.key_averages()]
    operators = to / f"{name}_operators.tmp.json"
    operators.write_text(json.dumps([row for row in rows if row["count"]]))
    operators.rename(to / f"{name}_operators.json")


def _row(event: Any) -> dict[str, Any]:
    kind = str(event.device_type).rpartition(".")[2].lower()
    is_kernel = kind != "cpu"
    return {
        "name": event.key,
        "device": kind,
        "count": event.count,
        "self_us": event.self_device_time_total if is_kernel else event.self_cpu_time_total,
        "total_us": event.device_time_total if is_kernel else event.cpu_time_total,
    }


def _is_row(row: Any) -> bool:
    return (
        isinstance(row, dict)
        and all(isinstance(row.get(key), str) for key in ("name", "device"))
        and all(isinstance(row.get(key), (int, float)) for key in _NUMBERS)
    )


def trace_files(folder: Path) -> list[tuple[int, Path]]:
    """Those of Chrome's format, with their ranks."""
    found = [(path.name.partition("_")[0], path) for path in _files(folder, "trace")]
    return [(int(rank), path) for rank, path in found if rank.isdecimal()]


def content_of(path: Path, kind: type[_Content]) -> _Content:
    """What a file has; nothing, and a line in the log, if it is damaged or something else."""
    try:
        found = json_of(path.read_bytes(), finite=False)
        if isinstance(found, kind):
            return found
        why = f"it has no {kind.__name__}"
    except (OSError, ValueError) as error:
        why = str(error)
    LOGGER.warning("profiler: '%s' is left out: %s", path, why)
    return kind()


def _files(folder: Path, kind: str) -> list[Path]:
    return sorted((folder / FOLDER).glob(f"*_{kind}.json"))


def top_operators(
    folder: str | os.PathLike[str], n: int = 20, *, by: str = "time", device: str | None = None
) -> list[Operator]:
    """What took most of the time, or was called most often, of all ranks.

    Args:
        folder: Where `start` with ``operators=True`` has recorded.
        n: How many.
        by: "time" (an operator's own, without what it calls) or "count".
        device: "cpu" for operators alone, "cuda" for kernels; all if None.

    Raises:
        InvalidArgument: another ``by``, or there are none in the folder.
    """
    if by not in ("time", "count"):
        raise InvalidArgument(
            sentences(
                "profile-order",
                f"top_operators() got by={by!r}.",
                "operators are ordered by the time that they took or by how often they ran.",
                "pass by='time' or by='count'.",
            )
        )
    sums: dict[tuple[str, str], list[float]] = defaultdict(lambda: [0, 0.0, 0.0])
    for path in _files(Path(folder), "operators"):
        for row in filter(_is_row, content_of(path, list)):
            if device in (None, row["device"]):
                of = sums[row["name"], row["device"]]
                for index, key in enumerate(_NUMBERS):
                    of[index] += row[key]
    if not sums:
        raise InvalidArgument(
            sentences(
                "profile-no-operators",
                f"top_operators() found none of {device or 'any device'} in '{os.fspath(folder)}'.",
                "there is no file framework/torch/..._operators.json that has them.",
                "record with start(folder, operators=True, schedule=...), and call step().",
            )
        )
    all_of = [
        Operator(name, kind, int(count), self_us, total_us)
        for (name, kind), (count, self_us, total_us) in sums.items()
    ]
    all_of.sort(key=lambda each: each.self_us if by == "time" else each.calls, reverse=True)
    return all_of[:n]
