# SPDX-License-Identifier: Apache-2.0
"""Horovod's timeline: a Chrome trace of what ranks asked for and rank 0 ran."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import farandole
import horovod.torch as hvd
import pytest
import torch
from farandole.named.timeline import Timeline

import ranks


def read(path: Path) -> list[dict[str, Any]]:
    events: list[dict[str, Any]] = json.loads(path.read_text())
    return events


def tracks(events: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    """The events of each name, in order."""
    names = {
        event["pid"]: event["args"]["name"]
        for event in events
        if event["ph"] == "M" and "name" in event["args"]
    }
    return {
        name: [event for event in events if event.get("pid") == pid and event["ph"] != "M"]
        for pid, name in names.items()
    }


def spans(track: list[dict[str, Any]]) -> list[tuple[int, str]]:
    """Depth and name of what begins, in order; all that begins must end, and times must rise."""
    found, depth = [], 0
    for before, event in zip([track[0], *track], track, strict=False):
        assert event["ts"] >= before["ts"]
        if event["ph"] == "B":
            found.append((depth, event["name"]))
        depth += {"B": 1, "E": -1}.get(event["ph"], 0)
        assert depth >= 0
    assert depth == 0
    return found


def ticks(track: list[dict[str, Any]]) -> list[str]:
    return [event["name"] for event in track if event["ph"] == "X"]


def with_timeline(path: Path, body: Callable[[int], None]) -> list[dict[str, Any]]:
    marked = {"HOROVOD_TIMELINE": str(path), "HOROVOD_TIMELINE_MARK_CYCLES": "1"}
    ranks.run(recorded, 2, body, setup=ranks.Setup(env=marked))
    return read(path)


def recorded(rank: int, world_size: int, body: Callable[[int], None]) -> None:
    hvd.init()
    body(rank)
    hvd.barrier()
    hvd.shutdown()


def operations(rank: int) -> None:
    time.sleep(0.3 * rank)  # rank 1 is late
    hvd.allreduce(torch.ones(2, 3), name="gradient")
    handles = [hvd.allreduce_async_(torch.ones(4), name=f"small.{k}") for k in range(3)]
    for handle in handles:
        hvd.synchronize(handle)
    hvd.grouped_allreduce([torch.ones(2), torch.ones(3)], name="group")
    hvd.allreduce(torch.ones(4), op=hvd.Adasum, name="adasum")
    hvd.allgather(torch.ones(1 + rank, 2), name="parts")
    hvd.broadcast_(torch.ones(4), 0, name="start")
    hvd.alltoall(torch.ones(4), name="all")
    hvd.reducescatter(torch.ones(4), name="share")
    time.sleep(0.3 * (1 - rank))  # rank 0 is late, which writes the timeline
    hvd.allreduce(torch.ones(2), name="second")
    hvd.join()


def test_each_name_has_a_track_with_its_phases(tmp_path: Path) -> None:
    events = with_timeline(tmp_path / "timeline.json", operations)
    assert events[0]["name"] == "process_name"
    began_s = events[0]["args"]["start_time_since_epoch_in_micros"] / 1e6
    assert abs(time.time() - began_s) < 120
    assert sum(event.get("name") == "CYCLE_START" and event["s"] == "g" for event in events) > 5
    found = tracks(events)
    gradient = found["allreduce.gradient"]
    assert spans(gradient) == [
        (0, "NEGOTIATE_ALLREDUCE"),
        (0, "ALLREDUCE"),
        (1, "QUEUE"),
        (1, "MEMCPY_IN_FUSION_BUFFER"),
        (1, "WAIT_FOR_OTHER_TENSOR_DATA"),
        (1, "FARANDOLE_ALLREDUCE"),
    ]
    assert gradient[-1]["args"] == {"dtype": "float32", "shape": "[2, 3]"}
    for name, order in (("gradient", ["0", "1"]), ("second", ["1", "0"])):
        begin, early, late, end = found[f"allreduce.{name}"][:4]
        assert [early["name"], late["name"]] == order
        assert begin["ts"] == early["ts"]
        assert 100_000 < late["ts"] - early["ts"] < 30_000_000
        assert (early["dur"], end["ph"]) == (0, "E")
    for track in found.values():
        assert sorted(ticks(track)) == ["0", "1"]
    for k in range(3):  # in place: nothing is copied
        kinds = [name for _, name in spans(found[f"allreduce.small.{k}"])]
        assert "MEMCPY_IN_FUSION_BUFFER" not in kinds
    assert found["allreduce.group"][-1]["args"]["shape"] == "[2], [3]"
    for name, first, call in (
        ("adasum", "NEGOTIATE_ADASUM", "FARANDOLE_ADASUM_ALLREDUCE"),
        ("parts", "NEGOTIATE_ALLGATHER", "FARANDOLE_ALLGATHER"),
        ("start", "NEGOTIATE_BROADCAST", "FARANDOLE_BCAST"),
        ("all", "NEGOTIATE_ALLTOALL", "FARANDOLE_ALLTOALL"),
        ("share", "NEGOTIATE_REDUCESCATTER", "FARANDOLE_REDUCESCATTER"),
    ):
        (track,) = (each for each in found if each.endswith(f".{name}"))
        kinds = [kind for _, kind in spans(found[track])]
        assert (kinds[0], kinds[1]) == (first, first.removeprefix("NEGOTIATE_"))
        assert kinds[-1] == call
    assert spans(found["join"]) == [(0, "NEGOTIATE_JOIN")]


def conflicts_and_sets(rank: int) -> None:
    with pytest.raises(hvd.HorovodInternalError):
        hvd.allreduce(torch.ones(2 + rank), name="differs")
    alone = hvd.add_process_set([0])
    if rank == 0:
        hvd.allreduce(torch.ones(2), name="alone", process_set=alone)
    hvd.allreduce(torch.ones(2), name="differs")


def test_errors_and_process_sets_are_in_it(tmp_path: Path) -> None:
    found = tracks(with_timeline(tmp_path / "timeline.json", conflicts_and_sets))
    kinds = [name for _, name in spans(found["allreduce.differs"])]
    assert kinds[:3] == ["NEGOTIATE_ALLREDUCE", "NEGOTIATE_ALLREDUCE", "ALLREDUCE"]
    assert ticks(found["allreduce.alone"]) == ["0"]


def begins_and_ends(rank: int, world_size: int, folder: Path) -> None:
    hvd.init()
    hvd.allreduce(torch.ones(1), name="before")
    for name in ("one", "two", "one"):
        hvd.start_timeline(str(folder / name))
        hvd.start_timeline(str(folder / name))  # goes on
        hvd.allreduce(torch.ones(1), name=name)
    hvd.stop_timeline()
    hvd.stop_timeline()
    hvd.allreduce(torch.ones(1), name="after")
    hvd.barrier()
    hvd.shutdown()


def test_it_begins_and_ends_when_asked(tmp_path: Path) -> None:
    dynamic = ranks.Setup(env={"HOROVOD_TIMELINE": "DYNAMIC"})
    ranks.run(begins_and_ends, 2, tmp_path, setup=dynamic)
    for name in ("one", "two"):
        events = read(tmp_path / name)
        assert list(tracks(events)) == [f"allreduce.{name}"]
        assert spans(tracks(events)[f"allreduce.{name}"])[-1] == (1, "FARANDOLE_ALLREDUCE")
        assert not any(event.get("name") == "CYCLE_START" for event in events)


@pytest.mark.system
def test_a_program_that_is_killed_leaves_valid_json(tmp_path: Path) -> None:
    path = tmp_path / "timeline.json"
    program = (
        "import sys\nfrom farandole.named.timeline import Timeline\n"
        "timeline = Timeline(sys.argv[1], mark_cycles=True)\n"
        "while True: timeline.cycle()"
    )
    process = subprocess.Popen([sys.executable, "-c", program, path])
    deadline_s = time.monotonic() + 60
    while not path.exists() or path.stat().st_size < 100_000:
        assert time.monotonic() < deadline_s
        time.sleep(0.01)
    process.kill()
    process.wait()
    text = path.read_text()
    try:
        events = json.loads(text)
    except ValueError:  # killed within a write: an open list, as Chrome reads it
        events = json.loads(text.rstrip().rpartition(",\n")[0] + "]")
    assert len(events) > 1000


def test_a_file_that_cannot_be_written_is_an_error_before_ranks_meet(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOROVOD_TIMELINE", str(tmp_path / "none" / "file"))
    with pytest.raises(farandole.SystemError, match=r"\[named-timeline\]"):
        hvd.init()
    assert not hvd.is_initialized()
    monkeypatch.delenv("HOROVOD_TIMELINE")
    with pytest.raises(ValueError, match="has not been initialized"):
        hvd.start_timeline(str(tmp_path / "file"))


def test_a_full_disk_ends_it_and_not_the_training(caplog: pytest.LogCaptureFixture) -> None:
    timeline = Timeline("/dev/null")
    full = os.open("/dev/full", os.O_WRONLY)
    os.dup2(full, timeline._file)
    os.close(full)
    timeline.cycle()
    timeline.marks_cycles = True
    timeline.cycle()
    timeline.close()
    assert "ends here: No space left on device" in caplog.text
