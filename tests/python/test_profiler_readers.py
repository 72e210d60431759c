# SPDX-License-Identifier: Apache-2.0
"""What was recorded is read back: whole, cut, damaged, foreign or growing."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from types import SimpleNamespace

import farandole
import numpy as np
import pytest
from farandole.profiler import Profile
from farandole.profiler.spans import MISSING

from profile_fixtures import START_S, START_US, TimelineWriter, core, gpu, write_metrics


def test_values_of_all_nodes_are_there_in_the_order_of_time(tmp_path: Path) -> None:
    write_metrics(tmp_path, {core(0): [3, 4]}, start_s=START_S + 60)
    write_metrics(tmp_path, {core(0): [1, 2], gpu(0): [7]})
    write_metrics(tmp_path, {core(0): [9]}, node="algo-2")
    metrics = Profile(tmp_path).metrics
    assert metrics.nodes() == ["algo-1", "algo-2"]
    (first,) = metrics.of("CPUUtilization", node="algo-1").values()
    assert first.values.tolist() == [1, 2, 3, 4]
    assert first.times.tolist() == [START_S, START_S + 0.5, START_S + 60, START_S + 60.5]
    assert [row.value for row in metrics.rows()] == [1, 2, 3, 4, 7, 9]
    assert metrics.time_range() == (START_S, START_S + 60.5)


def test_names_without_a_dimension_are_found(tmp_path: Path) -> None:
    write_metrics(tmp_path, {("memory", "MemoryUsedPercent", ""): [11]})
    assert len(Profile(tmp_path).metrics.of("MemoryUsedPercent")) == 1


def test_rows_become_a_table_of_pandas(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake = SimpleNamespace(DataFrame=lambda rows, columns: (list(rows), columns))
    monkeypatch.setitem(sys.modules, "pandas", fake)
    write_metrics(tmp_path, {core(0): [1]})
    (row,), columns = Profile(tmp_path).metrics.to_pandas()
    assert dict(zip(columns, row, strict=True)) == {
        "nodeID": "algo-1",
        "type": "cpu",
        "system_metric": "cpu0",
        "dimension": "CPUUtilization",
        "timestamp": START_S,
        "value": 1,
    }


def test_a_missing_folder_is_an_error_and_an_empty_one_is_not(tmp_path: Path) -> None:
    with pytest.raises(farandole.InvalidArgument, match="profile-folder"):
        Profile(tmp_path / "missing")
    profile = Profile(tmp_path)
    assert profile.problems() == []
    assert profile.metrics.time_range() is None
    assert profile.steps() == []


@pytest.mark.parametrize(
    "line",
    [
        b"not JSON",
        b'{"Type": "cpu"}',
        b'["cpu0", 1]',
        b'{"Type": 1, "Name": 2, "Dimension": 3, "NodeId": 4, "Value": 1, "Timestamp": 1}',
        b'{"Type": "cpu", "Name": "cpu0", "Dimension": "", "NodeId": "a", "Value": NaN, '
        b'"Timestamp": 1}',
        b"\xff\xfe\x00",
        b"[" * 100_000,
    ],
)
def test_damaged_lines_are_counted_and_the_others_read(tmp_path: Path, line: bytes) -> None:
    path = write_metrics(tmp_path, {core(0): [1, 2, 3]})
    lines = path.read_bytes().splitlines()
    lines.insert(1, line)
    path.write_bytes(b"\n".join(lines) + b"\n")
    profile = Profile(tmp_path)
    (series,) = profile.metrics.of("CPUUtilization").values()
    assert series.values.tolist() == [1, 2, 3]
    is_frame = not line.strip(b"[")
    assert [(each.what, each.amount) for each in profile.problems()] == (
        [] if is_frame else [("damaged lines", 1)]
    )


def test_foreign_files_are_named(tmp_path: Path) -> None:
    path = write_metrics(tmp_path, {core(0): [1]})
    (path.parent / "notes.txt").write_text("hello")
    (problem,) = Profile(tmp_path).problems()
    assert problem.file.endswith("notes.txt")
    assert problem.what == "not a file of this kind"


def test_a_growing_file_is_read_to_its_last_whole_line(tmp_path: Path) -> None:
    path = write_metrics(tmp_path, {core(0): [1, 2, 3, 4]})
    text = path.read_bytes()
    read = []
    for cut in (0, 10, len(text) // 2, len(text) - 1, len(text)):
        path.write_bytes(text[:cut])
        if not read:
            profile = Profile(tmp_path)
        profile.refresh()
        read.append(sum(len(each.values) for each in profile.metrics.of("CPUUtilization").values()))
    assert read == [0, 0, 2, 4, 4]
    assert profile.problems() == []


@pytest.mark.parametrize("cut", range(1, 400, 23))
def test_a_killed_rank_leaves_a_timeline_that_is_read(tmp_path: Path, cut: int) -> None:
    writer = TimelineWriter(tmp_path)
    for step in range(3):
        writer.step(step)
    path = writer.save()
    path.write_bytes(path.read_bytes()[:-cut])
    profile = Profile(tmp_path)
    (rank,) = profile.timeline.ranks()
    assert len(rank.spans()) >= 18 - 5
    assert all(problem.what == "bytes of an unfinished line" for problem in profile.problems())


def test_spans_have_their_category_and_arguments(tmp_path: Path) -> None:
    writer = TimelineWriter(tmp_path, 3, world_size=4, node="algo-2")
    writer.step(7, latest=2)
    writer.add(name="lost", ph="i", ts=5, args={"events": 12})
    writer.save()
    (rank,) = Profile(tmp_path).timeline.ranks()
    assert (rank.rank, rank.world_size, rank.node, rank.host) == (3, 4, "algo-2", "name")
    assert rank.lost_events == 12
    assert rank.clock_error_us == 30.1
    (step,) = rank.spans("step")
    assert (step.args["step"], step.start_us, step.duration_us) == (7, START_US + 100, 9900)
    (exposed,) = rank.spans("communication")
    assert (exposed.name, exposed.args["latest_rank"]) == ("exposed_communication", 2)


def test_times_are_brought_to_the_clock_of_rank_0(tmp_path: Path) -> None:
    writer = TimelineWriter(tmp_path, offset_us=100)
    for _ in range(5):
        writer.span("annotation", "a", 1000)
    writer.add(name="clock", ph="C", ts=4000, args={"offset_us": 300, "error_us": 5})
    writer.save()
    (rank,) = Profile(tmp_path).timeline.ranks()
    moved = np.array([span.start_us for span in rank.spans()]) - START_US - 1000 * np.arange(5)
    assert moved.tolist() == [100, 150, 200, 250, 300]


def test_a_file_that_is_renamed_when_it_is_whole_is_not_read_twice(tmp_path: Path) -> None:
    writer = TimelineWriter(tmp_path)
    writer.step(0)
    path = writer.save()
    path = path.rename(path.with_name(path.name + ".tmp"))
    profile = Profile(tmp_path)
    with path.open("a") as file:
        event = {"name": "gc", "cat": "gc", "ph": "X", "ts": 1, "dur": 2, "pid": 1, "args": {}}
        file.write(json.dumps(event) + ",\n")
    path.rename(path.with_name("1_100-algo-1_pythontimeline.json"))
    assert profile.refresh() == 1
    assert len(profile.timeline.ranks()[0].spans()) == 7


def test_a_file_in_the_place_of_one_that_was_read_is_read_from_its_beginning(
    tmp_path: Path,
) -> None:
    """A file system uses the inode of a removed file again."""
    writer = TimelineWriter(tmp_path)
    writer.step(0)
    path = writer.save()
    profile = Profile(tmp_path)
    before = len(profile.timeline.ranks()[0].spans())
    other = TimelineWriter(tmp_path / "other", start_us=START_US + 1_000_000)
    for step in range(3):
        other.step(step)
    path.write_bytes(other.save().read_bytes())  # the same inode
    profile.refresh()
    assert len(profile.timeline.ranks()[0].spans()) == 4 * before
    assert profile.problems() == []


@pytest.mark.parametrize("name", ["rank", "world_size", "local_rank"])
def test_a_rank_whose_header_is_damaged_is_left_out(name: str, tmp_path: Path) -> None:
    writer = TimelineWriter(tmp_path)
    writer.step(0)
    writer.events[1]["args"][name] = None
    writer.save()
    profile = Profile(tmp_path)
    assert profile.timeline.ranks() == []
    assert {each.what for each in profile.problems()} >= {"damaged lines"}


def test_a_rank_may_have_many_files(tmp_path: Path) -> None:
    for part in range(3):
        writer = TimelineWriter(tmp_path, start_us=START_US + part * 1_000_000)
        writer.path = writer.path.with_name(f"{part}_100-algo-1_pythontimeline.json")
        writer.step(part)
        writer.save()
    (rank,) = Profile(tmp_path).steps()
    assert rank.numbers.tolist() == [0, 1, 2]


def test_events_without_the_header_of_their_file_are_counted(tmp_path: Path) -> None:
    writer = TimelineWriter(tmp_path)
    writer.step(0)
    del writer.events[1]
    writer.save()
    profile = Profile(tmp_path)
    assert profile.timeline.ranks() == []
    assert [(each.what, each.amount) for each in profile.problems()] == [
        ("events without the header of a rank", 6)
    ]


def test_parts_belong_to_the_step_in_which_they_begin(tmp_path: Path) -> None:
    writer = TimelineWriter(tmp_path)
    writer.step(0, data=50)
    writer.span("checkpoint", "save", 500)
    writer.step(1, data=60, forward=1000, mode="EVAL")
    writer.span("data", "dataloader", 70)
    writer.save()
    (steps,) = Profile(tmp_path).steps()
    assert steps.parts_us["data"].tolist() == [50, 60]
    assert steps.parts_us["checkpoint"].tolist() == [0, 500]
    assert steps.compute_us.tolist() == [9800, 7800]
    assert steps.loop_us.tolist() == [9950, 7960]
    assert steps.of_mode("EVAL").tolist() == [False, True]


def test_spans_have_columns_and_are_made_one_by_one(tmp_path: Path) -> None:
    writer = TimelineWriter(tmp_path)
    writer.span("collective", "all_reduce", 10, bytes=100, latest_rank=1, waiting_us=2.5)
    writer.span("collective", "broadcast", 20, bytes=10**30, latest_rank=1)
    writer.span("collective", "all_reduce", 30, bytes="many", group="default")
    writer.save()
    (rank,) = Profile(tmp_path).timeline.ranks()
    spans = rank.spans("collective")
    assert [span.args for span in spans] == [
        {"bytes": 100, "latest_rank": 1, "waiting_us": 2.5},
        {"bytes": 10**30, "latest_rank": 1},
        {"bytes": "many", "group": "default"},
    ]
    assert json.loads(json.dumps(spans[-1].args)) == spans[-1].args  # plain values
    assert spans[1] == list(spans)[1] == spans[1:][0]
    assert spans.whole("bytes").tolist() == [100, MISSING, MISSING]
    assert spans.number("waiting_us").tolist() == pytest.approx([2.5, np.nan, np.nan], nan_ok=True)
    assert spans.largest("latest_rank") == 1
    assert spans.largest("workers") is None
    assert spans.sums_by("latest_rank", spans.durations_us) == {1: 30}
    assert {name: len(each) for name, each in spans.by_name().items()} == {
        "all_reduce": 2,
        "broadcast": 1,
    }
    assert not rank.spans("nothing")
    with pytest.raises(IndexError):
        spans[3]


def test_damaged_lines_cost_no_others(tmp_path: Path) -> None:
    path = write_metrics(tmp_path, {core(0): [float(i) for i in range(1000)]})
    lines = path.read_bytes().splitlines()
    for place in (0, 400, 401, 999):
        lines[place] = lines[place][:-1]
    path.write_bytes(b"\n".join(lines) + b"\n")
    profile = Profile(tmp_path)
    (series,) = profile.metrics.of("CPUUtilization").values()
    assert series.values.tolist() == [i for i in range(1000) if i not in (0, 400, 401, 999)]
    assert [each.amount for each in profile.problems()] == [4]
