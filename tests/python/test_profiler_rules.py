# SPDX-License-Identifier: Apache-2.0
"""Each rule fires on a profile with its fault, and not on one without."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import farandole
import pytest
from farandole.profiler import (
    BatchSize,
    CPUBottleneck,
    Dataloader,
    ExposedCommunication,
    GarbageCollection,
    GPUMemoryIncrease,
    HostCpuOversubscribed,
    HostMemoryLeak,
    IOBottleneck,
    LoadBalancing,
    LowGPUUtilization,
    MaxInitializationTime,
    OverallSystemUsage,
    Profile,
    ProfilerReport,
    ProfilerRule,
    RuleReport,
    RuleWatch,
    StepOutlier,
    Straggler,
    UnevenShards,
)
from farandole.profiler.rules.profiler_report import RULES
from farandole.rule_actions import StopTraining

from profile_fixtures import START_S, TimelineWriter, core, gpu, write_metrics, write_steps

MANY = 1200  # values: more than the patience of all rules


def judge(rule: ProfilerRule, folder: Path) -> RuleReport:
    report = rule.evaluate(Profile(folder))
    json.dumps(report.to_json(), allow_nan=False)
    assert report.rule == type(rule).__name__
    assert report.what.endswith(".")
    assert bool(report.advice) == report.fired
    assert (report.triggered > 0) == report.fired
    return report


def alternating(a: float, b: float, share_of_b: float) -> list[float]:
    """As many of each as the share says, spread evenly."""
    return [b if (i * share_of_b) % 1 + share_of_b >= 1 else a for i in range(MANY)]


# SageMaker's defaults, as its estimators and reports have them.
@pytest.mark.parametrize(
    ("rule", "defaults"),
    [
        (
            BatchSize,
            {
                "cpu_threshold_p95": 70,
                "gpu_threshold_p95": 70,
                "gpu_memory_threshold_p95": 70,
                "patience": 1000,
                "window": 500,
            },
        ),
        (
            CPUBottleneck,
            {"threshold": 50, "gpu_threshold": 10, "cpu_threshold": 90, "patience": 1000},
        ),
        (Dataloader, {"min_threshold": 70, "max_threshold": 200}),
        (GPUMemoryIncrease, {"increase": 5, "patience": 1000, "window": 10}),
        (
            IOBottleneck,
            {"threshold": 50, "gpu_threshold": 10, "io_threshold": 50, "patience": 1000},
        ),
        (LoadBalancing, {"threshold": 0.5, "patience": 1000}),
        (
            LowGPUUtilization,
            {"threshold_p95": 70, "threshold_p5": 10, "window": 500, "patience": 1000},
        ),
        (MaxInitializationTime, {"threshold": 20}),
        (OverallSystemUsage, {}),
        (StepOutlier, {"stddev": 3, "mode": None, "n_outliers": 10}),
    ],
)
def test_parameters_and_defaults_are_those_of_sagemaker(
    rule: type[ProfilerRule], defaults: dict[str, Any]
) -> None:
    for name, value in {"scan_interval_us": 60e6, **defaults}.items():
        assert getattr(rule(), name) == value


@pytest.mark.parametrize("name", RULES)
def test_a_rule_without_data_says_what_is_missing(tmp_path: Path, name: str) -> None:
    report = judge(RULES[name](), tmp_path)
    assert not report.has_data
    assert report.what


@pytest.mark.parametrize(
    "rule",
    [BatchSize, CPUBottleneck, GPUMemoryIncrease, IOBottleneck, LoadBalancing, LowGPUUtilization],
)
def test_rules_of_gpus_have_no_data_without_gpus(tmp_path: Path, rule: type[ProfilerRule]) -> None:
    write_metrics(tmp_path, {core(0): [99.0] * MANY})
    report = judge(rule(), tmp_path)
    assert not report.has_data
    assert "no GPU metrics" in report.what


@pytest.mark.parametrize(
    "rule",
    [BatchSize, CPUBottleneck, GPUMemoryIncrease, IOBottleneck, LoadBalancing, LowGPUUtilization],
)
def test_rules_of_gpus_wait_for_their_patience(tmp_path: Path, rule: type[ProfilerRule]) -> None:
    names = (gpu(0), gpu(0, "GPUMemoryUtilization"), core(0), core(0, "I/OWaitPercentage"))
    write_metrics(tmp_path, {name: [1.0] * 1000 for name in names})
    report = judge(rule(), tmp_path)
    assert not report.has_data
    assert report.datapoints == 1000


def bottleneck(busy: str, share: float) -> Callable[[Path], object]:
    return lambda folder: write_metrics(
        folder, {gpu(0): [3.0] * MANY, core(0, busy): alternating(5, 95, share)}
    )


@pytest.mark.parametrize(
    ("rule", "busy"), [(CPUBottleneck, "CPUUtilization"), (IOBottleneck, "I/OWaitPercentage")]
)
def test_a_bottleneck_is_a_gpu_that_is_idle_while_a_core_is_not(
    tmp_path: Path, rule: type[ProfilerRule], busy: str
) -> None:
    bottleneck(busy, 0.75)(tmp_path)
    report = judge(rule(), tmp_path)
    assert report.fired
    assert report.figures["percent"] == 75
    assert report.figures["low_gpu_utilization"] == MANY
    assert (report.triggered, report.datapoints) == (900, MANY)
    assert "algo-1" in report.what


@pytest.mark.parametrize(
    ("rule", "busy"), [(CPUBottleneck, "CPUUtilization"), (IOBottleneck, "I/OWaitPercentage")]
)
def test_rare_bottlenecks_do_not_fire(tmp_path: Path, rule: type[ProfilerRule], busy: str) -> None:
    bottleneck(busy, 0.25)(tmp_path)
    assert not judge(rule(), tmp_path).fired


def test_a_busy_core_beside_a_busy_gpu_is_no_bottleneck(tmp_path: Path) -> None:
    write_metrics(tmp_path, {gpu(0): [95.0] * MANY, core(0): [99.0] * MANY})
    assert not judge(CPUBottleneck(), tmp_path).fired


@pytest.mark.parametrize("high", [None, "cpu", "gpu", "memory"])
def test_a_batch_is_small_where_cores_gpu_and_memory_are_little_used(
    tmp_path: Path, high: str | None
) -> None:
    level = {name: 90.0 if high == name else 30.0 for name in ("cpu", "gpu", "memory")}
    write_metrics(
        tmp_path,
        {
            gpu(0): [level["gpu"]] * MANY,
            gpu(0, "GPUMemoryUtilization"): [level["memory"]] * MANY,
            core(0): [level["cpu"]] * MANY,
            core(1): [level["cpu"]] * MANY,
        },
    )
    report = judge(BatchSize(), tmp_path)
    assert report.fired == (high is None)
    assert report.figures["gpu0 of algo-1"]["cpu_p95"] == level["cpu"]


def test_a_batch_cannot_be_judged_by_gpus_alone(tmp_path: Path) -> None:
    write_metrics(tmp_path, {gpu(0): [5.0] * MANY})
    assert not judge(BatchSize(), tmp_path).has_data


@pytest.mark.parametrize(
    ("values", "phrase"),
    [
        ([50.0] * MANY, "is low: gpu1 of algo-1"),
        (alternating(95, 0, 0.25), "goes up and down: gpu1 of algo-1"),
        ([95.0] * MANY, None),
        ([0.0] * 600 + [95.0] * 600, None),  # only the last 500 count
    ],
)
def test_low_and_fluctuating_gpus_are_named(
    tmp_path: Path, values: list[float], phrase: str | None
) -> None:
    write_metrics(tmp_path, {gpu(0): [99.0] * MANY, gpu(1): values})
    report = judge(LowGPUUtilization(), tmp_path)
    assert report.fired == (phrase is not None)
    assert phrase is None or phrase in report.what


@pytest.mark.parametrize(("after", "fires"), [(100, True), (40, False), (30, False)])
def test_a_jump_of_a_gpus_memory_fires(tmp_path: Path, after: float, fires: bool) -> None:
    memory = gpu(0, "GPUMemoryUtilization")
    write_metrics(tmp_path, {memory: [30.0] * 1100 + [float(after)] * 100})
    report = judge(GPUMemoryIncrease(), tmp_path)
    assert report.fired == fires
    assert report.figures["gpu0 of algo-1"]["increase"] == (after - 30) / 10


def test_a_jump_before_the_patience_is_over_does_not_fire(tmp_path: Path) -> None:
    write_metrics(tmp_path, {gpu(0, "GPUMemoryUtilization"): [0.0] * 500 + [100.0] * 700})
    assert not judge(GPUMemoryIncrease(), tmp_path).fired


@pytest.mark.parametrize(("threshold", "fires"), [(5, True), (50, False)])
def test_a_rank_that_collects_garbage_is_named(
    tmp_path: Path, threshold: float, fires: bool
) -> None:
    write_steps(tmp_path, 300, gc_pauses)
    report = judge(GarbageCollection(threshold=threshold), tmp_path)
    assert report.fired == fires
    assert not fires or "stops rank 1 (20 % of its time)." in report.what
    assert report.figures["rank 1"]["longest_ms"] == 50
    assert report.figures["rank 1"]["steps_with_pauses"] == 15
    assert report.figures["rank 0"]["percent"] == 0


def test_garbage_of_what_is_done_once_does_not_fire(tmp_path: Path) -> None:
    write_steps(tmp_path, 30, lambda rank, step: {"gc": 900_000 if step == 0 else 0})
    assert not judge(GarbageCollection(), tmp_path).fired
    only_one = tmp_path / "one"
    write_steps(only_one, 1, gc_pauses)
    assert not judge(GarbageCollection(patience=0), only_one).has_data


@pytest.mark.parametrize(
    ("values", "fires"),
    [
        ([30.0 + step * 0.05 for step in range(300)], True),  # 15 % in 300 values
        ([30.0 + step * 0.01 for step in range(300)], False),  # 3 %
        ([30.0] * 30 + [60.0] * 270, False),  # what a training needs
        ([30.0 + 15 * (step % 100 > 50) for step in range(300)], False),  # up and down
        ([30.0 + step * 0.05 for step in range(150)], False),  # too few
    ],
)
def test_memory_that_rises_all_the_time_is_a_leak(
    tmp_path: Path, values: list[float], fires: bool
) -> None:
    write_metrics(tmp_path, {("memory", "MemoryUsedPercent", ""): values})
    report = judge(HostMemoryLeak(), tmp_path)
    assert report.fired == fires
    assert report.has_data == (len(values) >= 200)
    if fires:
        assert "algo-1 rose by 12" in report.what  # from the second tenth to the last
        assert "is full in" in report.what


@pytest.mark.parametrize(("other", "fires"), [(20.0, True), (99.0, False)])
def test_gpus_with_other_histograms_are_named(tmp_path: Path, other: float, fires: bool) -> None:
    write_metrics(tmp_path, {gpu(0): [100.0] * MANY})
    write_metrics(tmp_path, {gpu(0): [other] * MANY}, node="algo-2")
    report = judge(LoadBalancing(), tmp_path)
    assert report.fired == fires
    assert not fires or "gpu0 of algo-1, gpu0 of algo-2" in report.what


def test_system_usage_is_a_table_that_never_fires(tmp_path: Path) -> None:
    write_metrics(
        tmp_path,
        {
            core(0): [0.0, 50.0, 100.0],
            core(1): [0.0, 0.0, 0.0],
            ("network", "ReceiveBytesPerSecond", "Algorithm"): [1000.0] * 3,
            ("network", "TransmitBytesPerSecond", "Algorithm"): [500.0] * 3,
        },
    )
    report = judge(OverallSystemUsage(), tmp_path)
    assert report.figures["CPU"]["algo-1"]["max"] == 50
    assert report.figures["CPU"]["algo-1"]["p50"] == 25
    assert report.figures["Network"]["algo-1"]["min"] == 1500
    assert "GPU memory" in report.what  # was not recorded


@pytest.mark.parametrize(("minutes", "fires"), [(21, True), (19, False)])
def test_a_late_first_step_fires(tmp_path: Path, minutes: int, fires: bool) -> None:
    write_metrics(tmp_path, {core(0): [1.0]}, start_s=START_S - 60 * minutes)
    write_steps(tmp_path, 3, lambda rank, step: {})
    assert judge(MaxInitializationTime(), tmp_path).fired == fires


def test_a_first_step_that_does_not_come_fires(tmp_path: Path) -> None:
    write_metrics(tmp_path, {core(0): [1.0] * 30}, interval_s=60)
    TimelineWriter(tmp_path).save()
    report = judge(MaxInitializationTime(), tmp_path)
    assert report.fired
    assert "has not come" in report.what


def gc_pauses(rank: int, step: int) -> dict[str, Any]:
    return {"gc": 50_000 if rank == 1 and step % 20 == 19 else 0}


def test_outliers_of_steps_are_counted_with_their_cause(tmp_path: Path) -> None:
    write_steps(tmp_path, 300, gc_pauses)
    report = judge(StepOutlier(), tmp_path)
    assert report.fired
    assert "15 steps of rank 1 TRAIN" in report.what
    assert "is gc" in report.what
    assert report.figures["rank 1 TRAIN"]["step_numbers"] == list(range(19, 300, 20))


@pytest.mark.parametrize(
    "rule", [StepOutlier(mode="EVAL"), StepOutlier(n_outliers=15), StepOutlier(stddev=30)]
)
def test_parameters_change_what_an_outlier_is(tmp_path: Path, rule: StepOutlier) -> None:
    write_steps(tmp_path, 300, gc_pauses)
    assert not judge(rule, tmp_path).fired


def test_even_steps_have_no_outliers(tmp_path: Path) -> None:
    write_steps(tmp_path, 300, lambda rank, step: {"forward": 3000 + step % 7})
    assert not judge(StepOutlier(), tmp_path).fired


def cores(count: int) -> dict[tuple[str, str, str], list[float]]:
    return {core(i): [50.0] * 3 for i in range(count)}


@pytest.mark.parametrize(
    ("workers", "data", "phrase"),
    [
        (4, 100, None),
        (1, 100, "few loading processes: 2 for 8 cores"),
        (9, 100, "many loading processes: 18 for 8 cores"),
        (4, 5000, "waits for batches: rank 0 (34 % of its time, num_workers=4)"),
        (None, 5000, "waits for batches: rank 0 (34 % of its time), rank 1"),
        (None, 100, None),
    ],
)
def test_loaders_are_compared_with_cores_and_with_the_loop(
    tmp_path: Path, workers: int | None, data: float, phrase: str | None
) -> None:
    write_metrics(tmp_path, cores(8))
    write_steps(tmp_path, 30, lambda rank, step: {"workers": workers, "data": data})
    report = judge(Dataloader(), tmp_path)
    assert report.fired == (phrase is not None)
    assert phrase is None or phrase in report.what


def test_a_slow_disk_is_named_where_batches_are_late(tmp_path: Path) -> None:
    write_metrics(tmp_path, {**cores(8), core(3, "I/OWaitPercentage"): [60.0] * 3})
    write_steps(tmp_path, 30, lambda rank, step: {"workers": 4, "data": 5000})
    report = judge(Dataloader(), tmp_path)
    assert "on algo-1 a core waits for disks 60 % of the time" in report.what
    assert "disk" in report.advice


def test_a_slow_disk_is_named_where_cores_have_other_work(tmp_path: Path) -> None:
    blocked = {("host", "disks", "BlockedThreads"): [0.0, 2.0] + [1.0, 0.0] * 4}
    write_metrics(tmp_path, {**cores(8), core(3, "I/OWaitPercentage"): [10.0] * 3, **blocked})
    write_steps(tmp_path, 30, lambda rank, step: {"workers": 4, "data": 5000 * rank})
    waits = "a thread waits for disks 50 % of the time"
    assert f"on algo-1 {waits}" in judge(Dataloader(), tmp_path).what
    assert f"the cause is data ({waits})" in judge(Straggler(), tmp_path).what


def test_disks_that_do_not_explain_late_batches_are_not_named(tmp_path: Path) -> None:
    """Threads of other programs wait for them."""
    blocked = {("host", "disks", "BlockedThreads"): [1.0, 0.0, 0.0]}
    write_metrics(tmp_path, {**cores(8), **blocked})
    write_steps(tmp_path, 30, lambda rank, step: {"workers": 4, "data": 15_000 * rank})
    assert "disk" not in judge(Dataloader(), tmp_path).what
    assert "disk" not in judge(Straggler(), tmp_path).what


@pytest.mark.parametrize(
    ("slow", "cause"),
    [({"data": 4000}, "data"), ({"forward": 6000}, "compute"), ({"backward": 9000}, "compute")],
)
def test_a_straggler_is_named_with_its_cause(
    tmp_path: Path, slow: dict[str, Any], cause: str
) -> None:
    late = sum(slow.values()) - {"data": 100, "forward": 3000, "backward": 6000}[next(iter(slow))]

    def times(rank: int, step: int) -> dict[str, Any]:
        return slow if rank == 2 else {"exposed": 100 + late, "latest": 2}

    write_steps(tmp_path, 60, times, ranks=4, node=lambda rank: f"algo-{1 + rank // 2}")
    report = judge(Straggler(), tmp_path)
    assert report.fired
    assert (report.figures["rank"], report.figures["cause"]) == (2, cause)
    assert "rank 2 on algo-2" in report.what


def test_a_throttled_gpu_is_the_cause(tmp_path: Path) -> None:
    write_steps(tmp_path, 60, lambda rank, step: {"forward": 6000 if rank == 1 else 3000}, ranks=3)
    reasons = "GPUThrottleReasons"
    write_metrics(tmp_path, {gpu(0, reasons): [1.0] * 9, gpu(1, reasons): [33.0] * 9})
    report = judge(Straggler(), tmp_path)
    assert report.figures["cause"] == "a throttled machine"
    assert "slowed gpu1 down for 100 % of the time" in report.what


def test_other_threads_on_the_host_are_named(tmp_path: Path) -> None:
    write_steps(tmp_path, 60, lambda rank, step: {"forward": 6000 if rank == 1 else 3000})
    write_metrics(tmp_path, {("host", "cores", "RunnableThreadsPerCore"): [2.5] * 9})
    report = judge(Straggler(), tmp_path)
    assert "compute (its host has 2.5 threads for each core)" in report.what


def test_a_used_up_quota_is_the_cause(tmp_path: Path) -> None:
    write_steps(
        tmp_path,
        60,
        lambda rank, step: {"forward": 6000 if rank == 1 else 3000},
        ranks=3,
        node=lambda rank: f"algo-{rank + 1}",
    )
    write_metrics(tmp_path, {("host", "cgroup", "CPUThrottledPercentage"): [40.0]}, node="algo-2")
    assert judge(Straggler(), tmp_path).figures["cause"] == "a throttled machine"


def test_a_rank_with_a_slow_network_is_a_straggler(tmp_path: Path) -> None:
    write_steps(
        tmp_path,
        60,
        lambda rank, step: {"exposed": 100 if rank == 1 else 4000, "latest": 1},
        ranks=3,
    )
    report = judge(Straggler(), tmp_path)
    assert (report.figures["rank"], report.figures["cause"]) == (1, "communication")


def test_a_network_that_is_slow_for_all_makes_no_straggler(tmp_path: Path) -> None:
    write_steps(tmp_path, 60, lambda rank, step: {"exposed": 4000, "latest": 1}, ranks=3)
    assert not judge(Straggler(), tmp_path).fired


@pytest.mark.parametrize("ranks", [2, 4])
def test_equal_ranks_have_no_straggler(tmp_path: Path, ranks: int) -> None:
    write_steps(tmp_path, 60, lambda rank, step: {"forward": 3000 + rank * 10}, ranks=ranks)
    report = judge(Straggler(), tmp_path)
    assert report.has_data
    assert not report.fired


def test_one_long_pause_makes_no_straggler(tmp_path: Path) -> None:
    write_steps(
        tmp_path, 60, lambda rank, step: {"forward": 1e7 if (rank, step) == (1, 30) else 3000}
    )
    assert not judge(Straggler(), tmp_path).fired


def test_exposed_communication_is_split_into_network_and_ranks(tmp_path: Path) -> None:
    write_steps(tmp_path, 60, lambda rank, step: {"exposed": 4000 + 1000 * rank, "latest": 0})
    report = judge(ExposedCommunication(), tmp_path)
    assert report.fired
    assert report.figures["for_network_ms"] == 4
    assert report.figures["for_ranks_ms"] == 0.5
    assert "bfloat16" in report.advice


def test_waits_for_ranks_lead_to_the_straggler(tmp_path: Path) -> None:
    write_steps(tmp_path, 60, lambda rank, step: {"exposed": 100 if rank else 5000, "latest": 1})
    assert "Straggler" in judge(ExposedCommunication(), tmp_path).advice


def test_one_bucket_with_all_gradients_is_named(tmp_path: Path) -> None:
    for rank in range(2):
        writer = TimelineWriter(tmp_path, rank)
        for step in range(60):
            for bucket, size in enumerate((100, 900)):
                writer.span("bucket", f"bucket {bucket}", 10, bytes=size)
            writer.step(step, exposed=4000)
        writer.save()
    report = judge(ExposedCommunication(), tmp_path)
    assert report.figures["largest_bucket_percent"] == 90
    assert "bucket_cap_mb" in report.advice


def test_hidden_communication_does_not_fire(tmp_path: Path) -> None:
    write_steps(tmp_path, 60, lambda rank, step: {"exposed": 200})
    assert not judge(ExposedCommunication(), tmp_path).fired


def test_work_that_is_largest_on_other_ranks_each_step_is_uneven(tmp_path: Path) -> None:
    write_steps(
        tmp_path,
        60,
        lambda rank, step: {"forward": 9000 if step % 4 == rank else 3000},
        ranks=4,
    )
    report = judge(UnevenShards(), tmp_path)
    assert report.fired
    assert "DistributedBucketBatchSampler" in report.advice
    assert not judge(Straggler(), tmp_path).fired


def test_a_straggler_is_no_uneven_shard(tmp_path: Path) -> None:
    write_steps(tmp_path, 60, lambda rank, step: {"forward": 9000 if rank == 1 else 3000}, ranks=4)
    report = judge(UnevenShards(), tmp_path)
    assert not report.fired
    assert "rank 1: see Straggler" in report.what


def test_even_work_does_not_fire(tmp_path: Path) -> None:
    write_steps(tmp_path, 60, lambda rank, step: {"forward": 3000 + (step + rank) % 3})
    assert not judge(UnevenShards(), tmp_path).fired


@pytest.mark.parametrize(
    ("threads", "throttled", "fires"), [(3, 0, True), (1, 30, True), (1, 0, False)]
)
def test_hosts_with_more_threads_than_cores_are_named(
    tmp_path: Path, threads: float, throttled: float, fires: bool
) -> None:
    write_metrics(tmp_path, {("host", "cores", "RunnableThreadsPerCore"): [0.5] * 30})
    write_metrics(
        tmp_path,
        {
            ("host", "cores", "RunnableThreadsPerCore"): [float(threads)] * 30,
            ("host", "cgroup", "CPUThrottledPercentage"): [float(throttled)] * 30,
        },
        node="algo-2",
    )
    report = judge(HostCpuOversubscribed(), tmp_path)
    assert report.fired == fires
    assert "algo-1" not in report.what


def test_a_report_has_the_job_all_rules_and_what_is_unread(tmp_path: Path) -> None:
    write_metrics(tmp_path, {core(0): [1.0]}, start_s=START_S - 10)
    write_steps(tmp_path, 300, gc_pauses)
    (tmp_path / "system" / "foreign").write_text("")
    report = judge(ProfilerReport(), tmp_path)
    assert report.fired
    assert report.what == "fired: GarbageCollection, StepOutlier."
    assert report.figures["rules"][0]["rule"] == "GarbageCollection"
    assert {each["rule"] for each in report.figures["rules"]} == set(RULES)
    job = report.figures["job"]
    assert job["initialization_in_seconds"] == 10
    assert job["training_loop_in_seconds"] == pytest.approx(300 * 0.01 + 15 * 0.05, abs=0.01)
    assert job["job_duration"] == pytest.approx(13.75, abs=0.01)
    assert [each["file"] for each in report.figures["unread"]] == ["system/foreign"]


def test_a_report_names_causes_before_what_they_lead_to(tmp_path: Path) -> None:
    def times(rank: int, step: int) -> dict[str, Any]:
        is_slow = step % 4 == rank
        return {"forward": 9000} if is_slow else {"exposed": 6100, "latest": step % 4}

    write_steps(tmp_path, 60, times, ranks=4)
    fired = [each.rule for each in ProfilerReport().reports(Profile(tmp_path)) if each.fired]
    assert fired == ["UnevenShards", "ExposedCommunication"]


def test_a_report_takes_parameters_of_rules(tmp_path: Path) -> None:
    write_steps(tmp_path, 300, gc_pauses)
    parameters: dict[str, Any] = {"StepOutlier_n_outliers": 15, "GarbageCollection_threshold": 50}
    report = judge(ProfilerReport(opt_out_telemetry=True, **parameters), tmp_path)
    assert not report.fired
    assert report.parameters["StepOutlier_n_outliers"] == 15


@pytest.mark.parametrize("name", ["StepOutlier_sttdev", "Outlier_stddev", "stddev"])
def test_a_parameter_of_no_rule_is_refused(name: str) -> None:
    with pytest.raises(farandole.InvalidArgument, match="profiler-rule-parameter"):
        ProfilerReport(**{name: 1})


def test_rules_that_are_watched_fire_once_and_by_their_intervals(tmp_path: Path) -> None:
    writer = TimelineWriter(tmp_path)
    for step in range(120):
        writer.step(step)
    writer.save()
    watch = RuleWatch(Profile(tmp_path), [StepOutlier(n_outliers=1)], [StopTraining()])
    assert watch.poll(0) == []
    for step in range(120, 130):
        writer.step(step, forward=50_000 if step > 127 else 3000)
    with writer.path.open("a") as file:
        file.writelines(json.dumps(event) + ",\n" for event in writer.events[-60:])
    assert watch.poll(59) == []  # it is not yet time
    assert [report.rule for report in watch.poll(60)] == ["StepOutlier"]
    assert (tmp_path / "stop").read_text().startswith("StepOutlier: ")
    (tmp_path / "stop").unlink()
    assert watch.poll(120) == []  # it was reported
    assert not (tmp_path / "stop").exists()


@pytest.mark.parametrize(
    ("parameter", "value"),
    [
        *(("threshold", value) for value in ("10", None, True, float("nan"), [1])),
        *(("patience", value) for value in (-1, 2.5, "20")),
    ],
)
def test_a_value_of_a_parameter_that_cannot_be_is_refused(parameter: str, value: Any) -> None:
    with pytest.raises(farandole.InvalidArgument, match=f"Straggler got {parameter}="):
        Straggler(**{parameter: value})
    with pytest.raises(farandole.InvalidArgument, match=f"Straggler got {parameter}="):
        ProfilerReport(**{f"Straggler_{parameter}": value})


def test_a_window_has_a_value(tmp_path: Path) -> None:
    with pytest.raises(farandole.InvalidArgument, match="window=0"):
        GPUMemoryIncrease(window=0)


def test_a_rule_that_raises_costs_no_report_of_the_others(tmp_path: Path) -> None:
    @dataclass(frozen=True, kw_only=True)
    class Fires(ProfilerRule):
        raises: bool = False

        def evaluate(self, profile: Profile) -> RuleReport:
            if self.raises:
                raise KeyError
            return self._fired("always.", "", triggered=1, datapoints=1, figures={})

    write_steps(tmp_path, 1, lambda rank, step: {})
    watch = RuleWatch(Profile(tmp_path), [Fires(), Fires(raises=True), Fires()])
    with pytest.raises(KeyError):
        watch.poll(0)
    assert len(watch.poll(0)) == 2
