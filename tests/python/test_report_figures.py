# SPDX-License-Identifier: Apache-2.0
"""The figures of `farandole report` are those of profiles made by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from farandole.profiler import Profile, RuleReport
from farandole.report.comparison import comparison_of
from farandole.report.figures import figures_of
from farandole.report.lateness import lateness_of
from farandole.report.time_columns import MOST_COLUMNS

from profile_fixtures import START_S, TimelineWriter, core, gpu, write_metrics, write_steps


def of(folder: Path) -> dict[str, Any]:
    """As programs read them."""
    return dict(json.loads(json.dumps(figures_of(Profile(folder)), allow_nan=False)))


def test_parts_of_a_step_add_up_and_exposed_communication_is_split(tmp_path: Path) -> None:
    write_steps(
        tmp_path,
        30,
        lambda rank, step: {"exposed": 1000 if rank == 0 else 400, "gc": 50, "latest": 1},
    )
    first, second = of(tmp_path)["steps"]
    assert first["parts_ms"] == {
        "data": 0.1,
        "forward": 3.0,
        "backward": 6.0,
        "waiting": 0.6,
        "transfer": 0.4,
        "optimizer": 0.8,
        "checkpoint": 0.0,
        "gc": 0.05,
        "other": 0.0,
    }
    assert first["step_ms"] == 10.95
    assert sum(first["parts_ms"].values()) == pytest.approx(first["step_ms"])
    assert sum(first["parts_percent"].values()) == pytest.approx(100, abs=0.05)
    assert (second["parts_ms"]["waiting"], second["parts_ms"]["transfer"]) == (0.0, 0.4)
    assert second["steps"] == 29


def test_what_no_part_covers_is_other(tmp_path: Path) -> None:
    writer = TimelineWriter(tmp_path, world_size=1)
    for number in range(5):
        begin = writer.now_us
        writer.span("forward", "forward", 1000)
        writer.now_us += 3000
        step = {"ph": "X", "ts": begin, "dur": 4000, "tid": 1, "args": {"step": number}}
        writer.add(name="step", cat="step", **step)
    writer.save()
    (row,) = of(tmp_path)["steps"]
    assert (row["parts_percent"]["forward"], row["parts_percent"]["other"]) == (25.0, 75.0)


def test_who_came_last_and_how_long_others_waited(tmp_path: Path) -> None:
    write_steps(
        tmp_path,
        10,
        lambda rank, step: {"exposed": 100 if rank == 2 else 500, "latest": 2},
        ranks=3,
    )
    (row,) = lateness_of(Profile(tmp_path))
    assert row == {"rank": 2, "times": 10, "percent": 100.0, "waited_s": 0.005}


def test_the_wait_of_a_backward_counts_once(tmp_path: Path) -> None:
    writer = TimelineWriter(tmp_path)
    writer.span("communication", "exposed_communication", 500, latest_rank=1)
    writer.span("collective", "bucket_reduction", 500, latest_rank=1, waiting_us=400)
    writer.span("collective", "broadcast", 300, latest_rank=1, waiting_us=200)
    writer.save()
    (row,) = lateness_of(Profile(tmp_path))
    assert (row["times"], row["waited_s"]) == (2, 0.0007)


def test_step_times_have_columns_of_their_own(tmp_path: Path) -> None:
    write_steps(tmp_path, 101, lambda rank, step: {"forward": 3000 if step < 60 else 9000})
    write_metrics(tmp_path, {core(0): [1.0, 1.0, 1.0]})
    found = of(tmp_path)
    assert found["columns"]["count"] == 1
    mean = found["step_times"]["ranks"][0]["mean"]
    assert (mean[0], mean[20]) == (10.0, 10.0)
    assert max(each for each in mean if each is not None) == 16.0


def test_outliers_are_named_with_what_grew(tmp_path: Path) -> None:
    write_steps(tmp_path, 200, lambda rank, step: {"data": 9000 if step == 150 else 100})
    times = of(tmp_path)["step_times"]
    assert times["outliers"] == 2
    assert {(each["rank"], each["step"], each["grew"]) for each in times["longest"]} == {
        (0, 150, "data"),
        (1, 150, "data"),
    }
    assert times["ranks"][0]["ms"]["max"] == 18.9


def test_heat_maps_have_few_columns_and_rows_in_the_order_of_cores(tmp_path: Path) -> None:
    names = (core(10), core(2), core(2, "I/OWaitPercentage"), gpu(0))
    write_metrics(tmp_path, {name: [0.0] * 2000 + [50.0] * 2000 for name in names})
    found = of(tmp_path)
    assert found["columns"]["count"] == MOST_COLUMNS
    cores, waits, gpus = found["hardware"]
    assert [row["name"] for row in cores["rows"]] == ["cpu2", "cpu10"]
    row = cores["rows"][0]
    assert (row["mean"], row["p95"], row["max"]) == (25.0, 50.0, 50.0)
    assert row["columns"] == [0.0] * 300 + [50.0] * 300
    assert [len(group["rows"]) for group in (waits, gpus)] == [1, 1]


def test_cores_gpus_and_their_memory_have_the_numbers_of_a_box_plot(tmp_path: Path) -> None:
    values = [float(i) for i in range(101)]
    memory = gpu(1, "GPUMemoryUtilization")
    flat = [50.0] * 101
    write_metrics(tmp_path, {core(0): values, core(1): flat, gpu(1): values, memory: flat})
    cores, busy, filled = of(tmp_path)["utilization"]
    assert cores == {
        "place": "cores of algo-1",
        "min": 25.0,
        "p25": 37.5,
        "p50": 50.0,
        "p75": 62.5,
        "p95": 72.5,
    }
    assert (busy["place"], busy["p25"], busy["p95"]) == ("gpu1 of algo-1", 25.0, 95.0)
    assert (filled["place"], filled["min"]) == ("memory of gpu1 of algo-1", 50.0)


def test_what_was_not_recorded_at_a_time_is_null(tmp_path: Path) -> None:
    write_metrics(tmp_path, {core(0): [1.0] * 20})
    write_metrics(tmp_path, {core(1): [1.0] * 20}, start_s=START_S + 30)
    first, second = of(tmp_path)["hardware"][0]["rows"]
    assert first["columns"][0] == second["columns"][-1] == 1.0
    assert first["columns"][-1] is second["columns"][0] is None


def test_collectives_annotations_checkpoints_and_batches_are_added_up(tmp_path: Path) -> None:
    for rank in range(2):
        writer = TimelineWriter(tmp_path, rank)
        for number in range(4):
            writer.step(number, workers=3)
        writer.span("collective", "all_reduce", 2000, bytes=100, waiting_us=500, latest_rank=1)
        writer.span("annotation", "Loss", 1000)
        writer.span("checkpoint", "save", 3000)
        writer.save()
    found = of(tmp_path)
    (collective,) = found["collectives"]
    assert (collective["name"], collective["count"], collective["bytes"]) == ("all_reduce", 2, 200)
    assert (collective["total_s"], collective["waiting_s"]) == (0.004, 0.001)
    assert [each["name"] for each in found["annotations"]] == ["Loss"]
    assert found["checkpoints"][0]["mean_ms"] == 3.0
    assert [each["workers"] for each in found["data_loading"]] == [3, 3]
    assert found["data_loading"][0]["percent"] == 1.0


def test_rules_that_fired_come_first_and_those_without_data_last(tmp_path: Path) -> None:
    write_steps(tmp_path, 40, lambda rank, step: {"forward": 3000 + 4000 * rank})
    profile = Profile(tmp_path)
    more = RuleReport("VanishingGradient", True, True, "what", "advice", 1, 1, {})
    order = [(rule["fired"], rule["has_data"]) for rule in figures_of(profile, [more])["rules"]]
    assert order == sorted(order, key=lambda each: (not each[0], not each[1]))
    assert [rule["rule"] for rule in figures_of(profile, [more])["rules"] if rule["fired"]] == [
        "Straggler",
        "VanishingGradient",
    ]


def test_a_comparison_has_the_gain_and_the_rules_that_are_cured(tmp_path: Path) -> None:
    before, after = tmp_path / "before", tmp_path / "after"
    write_steps(before, 40, lambda rank, step: {"data": 10_000, "exposed": 200, "workers": 1})
    write_steps(after, 40, lambda rank, step: {"data": 0, "exposed": 200, "workers": 1})
    write_metrics(before, {gpu(0): [20.0] * 10})
    write_metrics(after, {gpu(0): [60.0] * 10, core(0): [1.0] * 10})
    found = comparison_of(of(before), of(after))
    assert found["step"] == {"before_ms": 20.0, "after_ms": 10.0, "speedup": 2.0}
    assert found["parts"][0] == {"part": "data", "before_ms": 10.0, "after_ms": 0.0}
    assert found["hardware"] == [{"title": "GPUs", "unit": "%", "before": 20.0, "after": 60.0}]
    (rule,) = [each for each in found["rules"] if each["rule"] == "Dataloader"]
    assert (rule["before"]["state"], rule["after"]["state"]) == ("fired", "did not fire")
