# SPDX-License-Identifier: Apache-2.0
"""`farandole bench predict`: worked examples, limits, files, the command line. Nothing is timed."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import farandole
import pytest
import torch
from farandole.__main__ import main
from farandole.bench.predict import (
    Algorithm,
    Conditions,
    Gradient,
    Link,
    Links,
    Options,
    RecordedStep,
    StepRecorder,
    Zero,
    combined,
    draws_of,
    effects,
    joined,
    load_links,
    load_step,
    predict,
    preset,
    simulate,
)
from farandole.bench.predict.advice import best_of_each_kind
from farandole.bench.predict.buckets import Caps, buckets_of, caps_of, default_caps
from farandole.bench.predict.collectives import Operation, cost_of
from farandole.bench.predict.fit import Measured, fitted
from farandole.bench.predict.layout import Layout, layout_of
from farandole.bench.predict.prediction import slowest_of
from farandole.bench.predict.presets import BETWEEN, WITHIN
from torch import nn

import warm_python
from benchmarks.harness.ranks import UnavailableError
from benchmarks.hosts.emulated import EmulatedHosts
from benchmarks.predict import outcome, published, summary

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "predict"
V100 = REPOSITORY / "benchmarks" / "predict" / "resnet50_v100.json"
MB = 10**6
FREE = Link(0.0, math.inf)
REPORT_S = 128 / (10 * MB)  # half of REPORT_BYTES at 10 MB/s


def links(megabytes_per_s: float, latency_s: float = 0.0, **more: object) -> Links:
    between = Link(latency_s, megabytes_per_s * MB, **more)  # type: ignore[arg-type]
    return Links(FREE, between, Algorithm.STRIPES)


def step_of(*ready_ms: float, size: int = MB, **more: object) -> RecordedStep:
    """A gradient of `size` bytes at each of these times."""
    return RecordedStep(
        **{  # type: ignore[arg-type]
            "name": "test",
            "device": "cpu",
            "gradients": tuple(Gradient(size, "float32", each) for each in ready_ms),
            "forward_ms": 50.0,
            "optimizer_ms": 8.0,
            "other_ms": 2.0,
            "steps_ms": ((210.0,) * 10,),
            **more,
        }
    )


def each_alone() -> Options:
    """Every gradient is a bucket of its own."""
    return Options(bucket_cap_mb=1e-6)


def conditions(step: RecordedStep, network: Links, **more: object) -> Conditions:
    given = {"ranks_per_host": 1, "options": each_alone(), "jitter": 0.0, **more}
    return Conditions(step, network, **given)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("operation", "size", "layout", "algorithm", "seconds"),
    [
        # Between hosts 10 MB/s and 0.1 s, within a host 100 MB/s and 0.01 s.
        ("all_reduce", MB, Layout(2, 1), "stripes", 0.1 + 0.1),
        ("all_reduce", MB, Layout(4, 1), "stripes", 2 * 0.1 + 1.5 * 0.1),
        ("all_reduce", 20_000, Layout(4, 1), "stripes", 0.1 + 3 * 0.002),  # one round: small
        ("all_reduce", MB, Layout(2, 2), "stripes", 2 * 0.01 + 0.1 + 0.1),
        ("all_reduce", MB, Layout(1, 4), "stripes", 2 * 0.01 + 1.5 * 0.01),
        ("reduce_scatter", MB, Layout(4, 1), "stripes", 0.1 + 0.75 * 0.1),
        ("all_gather", MB, Layout(4, 1), "stripes", 0.1 + 0.75 * 0.1),
        ("broadcast", MB, Layout(4, 1), "stripes", 0.1 + 3 * 0.1),
        ("all_reduce", MB, Layout(2, 2), "ring", 4 * 0.01 + 2 * 0.1 + 1.5 * 0.1),
        ("all_gather", MB, Layout(2, 2), "ring", 2 * 0.01 + 0.1 + 0.75 * 0.1),
        ("all_reduce", MB, Layout(8, 2), "tree", 2 * 0.01 + 6 * 0.1 + 2 * 0.1 / 0.92),
        ("all_reduce", MB, Layout(1, 2), "tree", 2 * 0.01 + 0.01),  # a ring
        ("all_reduce", MB, Layout(8, 2), "nccl", 2 * 0.01 + 6 * 0.1 + 2 * 0.1 / 0.92),
        ("all_reduce", 100 * MB, Layout(2, 1), "nccl", 2 * 0.1 + 10),  # the ring is faster
    ],
)
def test_collectives_take_rounds_and_bytes(
    operation: str, size: int, layout: Layout, algorithm: str, seconds: float
) -> None:
    network = Links(Link(0.01, 100 * MB), Link(0.1, 10 * MB), Algorithm(algorithm))
    found = cost_of(Operation(operation), size, layout, network)
    assert found.seconds == pytest.approx(seconds)


def test_a_rank_alone_sends_nothing() -> None:
    assert cost_of(Operation.ALL_REDUCE, MB, Layout(1, 1), links(1, 1.0)).seconds == 0


def test_further_messages_of_a_round_cost_their_calls() -> None:
    cheap = cost_of(Operation.ALL_REDUCE, MB, Layout(8, 1), links(10)).seconds
    network = links(10, message_s=0.001)
    costly = cost_of(Operation.ALL_REDUCE, MB, Layout(8, 1), network).seconds
    assert costly - cheap == pytest.approx(2 * 6 * 0.001)


def test_a_bucket_that_ends_in_time_is_hidden() -> None:
    # 1 MB takes 100 ms: 100 to 200, 200 to 300; then the report, 2 ms and the optimizer's 8 ms.
    times = simulate(step_of(100, 200), Layout(2, 1), links(10), each_alone())
    assert times.step_s == pytest.approx(0.300 + REPORT_S + 0.010)
    assert times.exposed_s == pytest.approx(0.100 + REPORT_S)


def test_a_bucket_waits_for_those_before_it() -> None:
    # 1 MB takes 200 ms: 100 to 300, 300 to 500.
    times = simulate(step_of(100, 200), Layout(2, 1), links(5), each_alone())
    assert times.step_s == pytest.approx(0.500 + 2 * REPORT_S + 0.010)


def test_gradients_wait_for_the_last_one_of_their_bucket() -> None:
    times = simulate(step_of(100, 200), Layout(2, 1), links(10), Options(bucket_cap_mb=100))
    assert times.step_s == pytest.approx(0.300 + 0.100 + REPORT_S + 0.010)


def test_communication_takes_cores_from_computation() -> None:
    # While the first bucket travels, 100 to 200, computation has half of the core: it does 50 of
    # the 100 ms until then and ends at 250. The second bucket travels from 250 to 350.
    half = replace(links(10, cpu_s_per_byte=0.5 * 0.1 / (2 * MB)), cores_per_host=1.0)
    times = simulate(step_of(100, 200), Layout(2, 1), half, each_alone())
    assert times.step_s == pytest.approx(0.350 + REPORT_S + 0.010)


def test_queued_collectives_take_cores_one_after_the_other() -> None:
    # 1 MB takes 100 ms and half of the core; the gradients are ready after 100, 110 and 300 ms of
    # computation. Bucket 0: 100 to 200; bucket 1 is ready at 120 and travels from 200 to 300. By
    # then 200 ms are computed, so the last gradient is ready at 400.
    half = replace(links(10, cpu_s_per_byte=0.5 * 0.1 / (2 * MB)), cores_per_host=1.0)
    times = simulate(step_of(100, 110, 300), Layout(2, 1), half, each_alone())
    assert times.step_s == pytest.approx(0.500 + REPORT_S + 0.010)


@pytest.mark.parametrize(
    ("options", "seconds"),
    [
        # 1 MB takes 100 ms on 2 ranks: 100 to 200, 200 to 300; nothing is cast for the wire.
        (Options(wire_dtype="bfloat16", bucket_cap_mb=1e-6), 0.300 + 0.010),
        # reduce_scatters of 50 ms after backward, half of the optimizer, all_gather of 100 ms
        (Options(1e-6, zero=Zero.SHARD), 0.300 + 0.002 + 0.004 + 0.100),
        (Options(1e-6, zero=Zero.SHARD, overlap_with_ddp=True), 0.300 + 0.002 + 0.004 + 0.100),
    ],
)
def test_ranks_that_share_memory_need_no_wire(options: Options, seconds: float) -> None:
    network = Links(Link(0.0, 10 * MB), FREE, Algorithm.STRIPES)
    times = simulate(step_of(100, 200), Layout(1, 2), network, options)
    assert times.step_s == pytest.approx(seconds + REPORT_S)


def test_default_buckets_are_smaller_in_shared_memory() -> None:
    assert default_caps(shared=True) == Caps(2**18, 2**20, 2**18)
    assert default_caps(shared=False) == Caps(2**20, 25 * 2**20, 2**20)
    assert caps_of(10, shared=False) == Caps(2**20, 10 * 2**20)
    assert caps_of(0.5, shared=True) == Caps(2**18, 2**19)


def test_collectives_take_longer_while_ranks_compute() -> None:
    # 1 MB takes 100 ms, and 200 ms while ranks compute. Bucket 0 is launched at 100, has half of it
    # left at 200, when all is computed, and ends at 250; bucket 1 travels until 350.
    slow = replace(links(10), busy_factor=2.0)
    times = simulate(step_of(100, 200), Layout(2, 1), slow, each_alone())
    assert times.step_s == pytest.approx(0.350 + REPORT_S + 0.010)


def test_the_slowest_rank_sets_the_pace() -> None:
    times = simulate(step_of(100, 200), Layout(2, 1), links(10), each_alone(), slowest=2.0)
    assert times.step_s == pytest.approx(0.400 + 0.100 + REPORT_S + 0.020)


def test_buffers_are_broadcast_before_forward() -> None:
    step = step_of(100, 200, buffer_bytes=MB)
    times = simulate(step, Layout(2, 1), links(10), each_alone())
    assert times.step_s == pytest.approx(0.100 + 0.300 + REPORT_S + 0.010)


def test_half_types_on_the_wire_halve_bytes() -> None:
    options = replace(each_alone(), wire_dtype="bfloat16")
    times = simulate(step_of(100, 200), Layout(2, 1), links(5), options)
    assert times.step_s == pytest.approx(0.300 + 2 * REPORT_S + 0.010)
    (bucket,) = buckets_of([Gradient(100, "bfloat16", 1.0)], Caps(1, 1), "float16")
    assert bucket.bytes == 100


@pytest.mark.parametrize(
    ("zero", "overlap", "seconds"),
    [
        # all_reduces until 300; 2 ms, half of the optimizer, all_gather of 2 MB: 100 ms
        (Zero.FULL, False, 0.300 + 0.002 + 0.004 + 0.100),
        # reduce_scatters of 50 ms
        (Zero.SHARD, False, 0.250 + 0.002 + 0.004 + 0.100),
        # forward hides 50 of the 100 ms
        (Zero.SHARD, True, 0.250 + 0.002 + 0.004 + 0.050),
        # one rank a host: nothing is divided
        (Zero.HOST, False, 0.300 + 0.002 + 0.008),
    ],
)
def test_sharded_optimizers_gather_parameters(zero: Zero, overlap: bool, seconds: float) -> None:
    options = replace(each_alone(), zero=zero, overlap_with_ddp=overlap)
    times = simulate(step_of(100, 200), Layout(2, 1), links(10), options)
    assert times.step_s == pytest.approx(seconds + REPORT_S)


def test_buckets_are_those_of_distributed_data_parallel() -> None:
    # As in src/ddp/bucket_plan.cpp: the gradient that reaches the cap closes the bucket.
    sizes = [40, 70, 100, 10, 20, 30, 5]
    gradients = [Gradient(size, "float32", float(at)) for at, size in enumerate(sizes)]

    def planned(caps: Caps) -> list[tuple[float, float]]:
        return [(bucket.bytes, bucket.ready_ms) for bucket in buckets_of(gradients, caps)]

    assert planned(Caps(50, 120)) == [(110, 1.0), (130, 4.0), (35, 6.0)]
    assert planned(Caps(50, 1000, 36)) == [(110, 1.0), (130, 4.0), (35, 6.0)]
    assert planned(Caps(50, 1000, 1)) == [(110, 1.0), (160, 5.0), (5, 6.0)]
    mixed = [Gradient(10, "float32", 1.0), Gradient(10, "float16", 2.0), Gradient(10, "float32", 3)]
    assert [bucket.bytes for bucket in buckets_of(mixed, Caps(100, 100))] == [10, 20]


def test_without_communication_and_jitter_nothing_is_lost() -> None:
    network = Links(FREE, FREE, Algorithm.STRIPES)
    for ranks in (2, 64, 1024):
        found = predict(conditions(step_of(100, 200), network), ranks, draws_of(0))
        assert found.efficiency == pytest.approx(1)
        assert (found.low, found.high) == pytest.approx((1, 1))


def test_more_bandwidth_is_never_slower() -> None:
    step = step_of(*range(60, 200, 7), size=300_000)
    for network in (links(1), preset("pcie4", "25gbe"), preset("shared-memory", "100gbe")):
        taken = [
            predict(conditions(step, network.scaled(factor, factor), ranks_per_host=8), 64,
                    draws_of(0, 20)).step_ms
            for factor in (0.01, 0.1, 0.5, 1, 2, 10)
        ]  # fmt: skip
        assert taken == sorted(taken, reverse=True)


def test_the_interval_contains_the_median_and_is_reproducible() -> None:
    network = Links(FREE, Link(1e-4, 20 * MB, spread=0.3), Algorithm.STRIPES)
    given = conditions(step_of(100, 200), network, jitter=0.05)
    for ranks in (2, 16, 1024):
        found = predict(given, ranks, draws_of(7))
        assert found.low < found.efficiency < found.high
        assert found == predict(given, ranks, draws_of(7))


def test_the_slowest_of_many_ranks_has_its_distribution() -> None:
    assert slowest_of(1, 0.1, 0.5) == pytest.approx(1)
    assert slowest_of(8, 0.0, 0.9) == 1
    # The median of the slowest of 2 is the quantile sqrt(1/2) of one: 0.5450 deviations.
    assert slowest_of(2, 0.1, 0.5) == pytest.approx(math.exp(0.05450), rel=1e-4)
    assert slowest_of(1024, 0.1, 0.5) == pytest.approx(math.exp(0.3201), rel=1e-3)


def test_jitter_is_what_ranks_differ_by() -> None:
    assert step_of(1.0, steps_ms=((1.0, 2.0),)).jitter() == 0  # too few
    one = tuple(math.exp(0.1 * each) for each in (-1.2816, 0, 1.2816) * 10)
    assert step_of(1.0, steps_ms=(one,)).jitter() == pytest.approx(0.1, rel=0.02)
    assert step_of(1.0, steps_ms=(one, one)).jitter() == pytest.approx(0)  # all of them at once


def test_recordings_are_combined() -> None:
    a, b = step_of(100, 200), step_of(120, 240, forward_ms=70.0)
    together = combined([a, b])
    assert [each.ready_ms for each in together.gradients] == [110, 220]
    assert together.forward_ms == 60
    assert together.steps_ms == a.steps_ms + b.steps_ms
    assert joined([together, together]).steps_ms == (a.steps_ms[0] * 2, b.steps_ms[0] * 2)


def test_latency_and_bandwidth_are_found_again() -> None:
    true = links(100, 0.002)
    for layout, operation in ((Layout(2, 1), "all_reduce"), (Layout(4, 1), "all_gather")):
        pairs = tuple(
            (size, cost_of(Operation(operation), size, layout, true).seconds)
            for size in (10_000.0, 1e6, 1e8)
        )
        found = fitted(Measured(Operation(operation), layout, pairs), Algorithm.STRIPES)
        assert found.latency_s == pytest.approx(0.002)
        assert found.bytes_per_s == pytest.approx(100 * MB)
        assert found.spread == pytest.approx(0, abs=1e-9)


def test_a_latency_below_zero_becomes_zero() -> None:
    measured = Measured(Operation.ALL_REDUCE, Layout(2, 1), ((1e6, 0.08), (1e7, 0.95)))
    found = fitted(measured, Algorithm.STRIPES)
    assert found.latency_s == 0
    assert 0.08 / 1e6 < 1 / found.bytes_per_s < 0.95 / 1e7
    assert 0 < found.spread < 0.2


def test_advice_names_what_helps() -> None:
    # Communication takes far longer than computation, and travels in float32.
    given = conditions(step_of(100, 200), links(0.5), jitter=0.05)
    found = effects(given, 4, draws_of(0, 50))
    assert [effect.change.is_bound for effect in found[-2:]] == [True, True]
    best = best_of_each_kind(found)
    assert best[0].change.kind in ("wire", "hosts")
    by_kind = {effect.change.kind: effect for effect in best}
    assert by_kind["wire"].gain == pytest.approx(0.47, abs=0.03)
    assert by_kind["wire"].change.what == "wire_dtype=torch.bfloat16"
    assert {"buckets", "zero", "hosts"} <= by_kind.keys()
    limits = {effect.change.what: effect.gain for effect in found if effect.change.is_bound}
    assert limits["links without limits"] > 0.9 > 0.1 > limits["ranks without jitter"] > 0


def test_every_preset_has_a_source_and_is_in_use() -> None:
    for presets in (WITHIN, BETWEEN):
        for name, link in presets.items():
            assert link.source, name
            assert 0 < link.latency_s < 1e-3
            assert 0 < link.spread <= 0.5
    assert preset("nvlink4", "ib-ndr").algorithm is Algorithm.NCCL
    assert preset("shared-memory", "25gbe").algorithm is Algorithm.STRIPES


def test_a_recorder_finds_gradients_in_their_order(tmp_path: Path) -> None:
    module = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.Linear(16, 4))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    recorder = StepRecorder(module, optimizer, name="small")
    for _ in range(10):
        with recorder.step():
            optimizer.zero_grad()
            for _ in range(2):  # the last of two passes counts
                module(torch.randn(4, 8)).sum().backward()
            optimizer.step()
    recorder.close()
    step = recorder.recorded()
    assert (step.name, step.device) == ("small", "cpu")
    assert sorted(each.bytes for each in step.gradients) == sorted(
        each.numel() * 4 for each in module.parameters()
    )
    assert step.gradients[-1].bytes in (16 * 8 * 4, 16 * 4)  # of the first layer
    assert len(step.steps_ms[0]) == 7
    assert 0 < step.forward_ms < step.backward_end_ms
    assert step.optimizer_ms > 0
    assert step.buffer_bytes == 16 * 4 * 2 + 8
    step.save(tmp_path / "step.json")
    assert load_step(tmp_path / "step.json") == step
    count = len(recorder._steps)
    module(torch.randn(4, 8)).sum().backward()  # no hook is left
    assert len(recorder._steps) == count


def test_a_parameter_without_gradient_is_left_out() -> None:
    module = nn.ModuleList([nn.Linear(2, 2), nn.Linear(2, 2)])
    recorder = StepRecorder(module)
    for _ in range(5):
        with recorder.step():
            module[0](torch.randn(1, 2)).sum().backward()
    assert len(recorder.recorded().gradients) == 2
    assert recorder.recorded().optimizer_ms == 0


def test_misuse_of_a_recorder_raises() -> None:
    with pytest.raises(farandole.InvalidArgument, match="predict-no-parameters"):
        StepRecorder(nn.ReLU())
    recorder = StepRecorder(nn.Linear(2, 2))
    with pytest.raises(farandole.InvalidArgument, match="predict-nothing-recorded"):
        recorder.recorded()


@pytest.mark.system
def test_a_wrapped_module_is_refused(tmp_path: Path) -> None:
    program = (
        "import farandole, torch, torch.distributed as dist\n"
        "from farandole.bench.predict import StepRecorder\n"
        f"place = 'file://{tmp_path}/meet'\n"
        "dist.init_process_group('farandole', init_method=place, rank=0, world_size=1)\n"
        "StepRecorder(farandole.DistributedDataParallel(torch.nn.Linear(2, 2)))\n"
    )
    done = subprocess.run(
        [warm_python.executable(), "-c", program], capture_output=True, text=True, timeout=60,
        check=False,
    )  # fmt: skip
    assert "[predict-wrapped]" in done.stderr


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"format": "else"}, "predict-step-file"),
        ({"gradients": []}, "predict-step-file"),
        ({"gradients": [{"bytes": 4, "dtype": "float32"}]}, "predict-step-file"),
        ({"gradients": [{"bytes": 0, "dtype": "float32", "ready_ms": 1}]}, "predict-step-file"),
        (
            {
                "gradients": [
                    {"bytes": 4, "dtype": "float32", "ready_ms": 2},
                    {"bytes": 4, "dtype": "float32", "ready_ms": 1},
                ]
            },
            "predict-step-file",
        ),
        ({"forward_ms": -1}, "predict-step-file"),
        ({"optimizer_ms": None}, "predict-step-file"),
        ({"steps_ms": []}, "predict-step-file"),
        ({"steps_ms": [[1, 0]]}, "predict-step-file"),
        ({"steps_ms": [[1, -1]]}, "predict-step-file"),
        ({"steps_ms": [[math.nan] * 5]}, "predict-step-file"),
        ({"steps_ms": [[1.0] * 5, [1.0] * 6]}, "predict-step-file"),
        (
            {"gradients": [{"bytes": math.nan, "dtype": "float32", "ready_ms": 1}]},
            "predict-step-file",
        ),
        ({"gradients": [{"bytes": 4, "dtype": None, "ready_ms": 1}]}, "predict-step-file"),
        ({"gradients": [{"bytes": 10**400, "dtype": "f", "ready_ms": 1}]}, "predict-step-file"),
        ({"unknown": 1}, "predict-step-file"),
    ],
)
def test_bad_steps_are_refused(tmp_path: Path, change: dict[str, object], name: str) -> None:
    path = tmp_path / "step.json"
    step_of(1.0, 2.0).save(path)
    path.write_text(json.dumps({**json.loads(path.read_text()), **change}))
    with pytest.raises(farandole.InvalidArgument, match=name):
        load_step(path)


@pytest.mark.parametrize("text", ["null", "5", '"step"', "[1]", "{}"])
def test_json_that_is_no_step_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "step.json"
    path.write_text(text)
    with pytest.raises(farandole.InvalidArgument, match="predict-step-file"):
        load_step(path)


def test_a_step_that_takes_no_time_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "step.json"
    step_of(0.0, forward_ms=0.0, optimizer_ms=0.0, other_ms=0.0).save(path)
    with pytest.raises(farandole.InvalidArgument, match="predict-step-file"):
        load_step(path)


LINKS = {
    "format": "farandole-links-1",
    "algorithm": "stripes",
    "cores_per_host": 2,
    "within_host": {"preset": "shared-memory"},
    "between_hosts": {
        "measured": {
            "operation": "all_reduce",
            "hosts": 2,
            "ranks_per_host": 1,
            "pairs": [[1000000, 0.011], [10000000, 0.101]],
        },
        "cpu_s_a_gb": 0.3,
    },
}


def test_a_file_of_links_has_presets_measurements_and_numbers(tmp_path: Path) -> None:
    path = tmp_path / "links.json"
    path.write_text(json.dumps(LINKS))
    found = load_links(path)
    assert found.within == WITHIN["shared-memory"]
    assert found.between.latency_s == pytest.approx(0.001)
    assert found.between.bytes_per_s == pytest.approx(100 * MB)
    assert found.between.cpu_s_per_byte == pytest.approx(0.3e-9)
    assert found.cores_per_host == 2
    numbers = {"latency_us": 4, "gb_per_s": 2, "spread": 0.1, "message_us": 1}
    path.write_text(json.dumps({**LINKS, "algorithm": "ring", "between_hosts": numbers}))
    found = load_links(path)
    assert found.between == Link(4e-6, 2e9, 0.1, 1e-6)
    assert found.algorithm is Algorithm.RING


@pytest.mark.parametrize(
    ("change", "name"),
    [
        ({"format": "else"}, "predict-links-file"),
        ({"algorithm": "magic"}, "predict-links-file"),
        ({"cores_per_host": 0}, "predict-links-file"),
        ({"busy_factor": 0}, "predict-links-file"),
        ({"within_host": {"latency_us": 5, "gb_per_s": 0}}, "predict-links-file"),
        ({"within_host": "fast"}, "predict-links-file"),
        ({"launch_us": -1000}, "predict-links-file"),
        ({"within_host": {"latency_us": -5, "gb_per_s": 1}}, "predict-links-file"),
        ({"within_host": {"latency_us": math.nan, "gb_per_s": 1}}, "predict-links-file"),
        ({"within_host": {"latency_us": 5, "gb_per_s": math.inf}}, "predict-links-file"),
        ({"within_host": {"latency_us": 5, "gb_per_s": 1, "spread": -1}}, "predict-links-file"),
        (
            {"between_hosts": {"measured": {"hosts": 0, "ranks_per_host": 1, "pairs": []}}},
            "predict-links-file",
        ),
        (
            {"between_hosts": {"measured": {"hosts": 2, "ranks_per_host": 4, "pairs": []}}},
            "predict-links-file",
        ),
        (
            {
                "between_hosts": {
                    "measured": {"hosts": 2, "ranks_per_host": 1, "pairs": [[1, math.nan], [2, 1]]}
                }
            },
            "predict-links-file",
        ),
        ({"within_host": {"preset": "nvlink9"}}, "predict-preset"),
        (
            {"between_hosts": {"measured": {"hosts": 2, "ranks_per_host": 1, "pairs": [[1, 1]]}}},
            "predict-pairs",
        ),
        (
            {"between_hosts": {"measured": {"hosts": 2, "ranks_per_host": 1, "pairs": [[1, 0]]}}},
            "predict-pair",
        ),
    ],
)
def test_bad_links_are_refused(tmp_path: Path, change: dict[str, object], name: str) -> None:
    path = tmp_path / "links.json"
    path.write_text(json.dumps({**LINKS, **change}))
    with pytest.raises(farandole.InvalidArgument, match=rf"\[{name}\]"):
        load_links(path)


def test_hosts_have_equal_numbers_of_ranks() -> None:
    assert layout_of(4, 8) == Layout(1, 4)
    assert layout_of(16, 8) == Layout(2, 8)
    with pytest.raises(farandole.InvalidArgument, match="predict-ranks"):
        layout_of(12, 8)


def test_the_command_predicts_from_a_recorded_step(capsys: pytest.CaptureFixture[str]) -> None:
    given = ["bench", "predict", str(V100), "--within", "nvlink2", "--between", "25gbe"]
    assert main([*given, "--jitter", "2"]) == 0
    printed = capsys.readouterr().out
    for text in ("161 gradients, 97.5 MiB", "NCCL's ring or tree", "1024", "What would help",
                 "links without limits", "ranks without jitter"):  # fmt: skip
        assert text in printed
    assert main([*given, "--json", "--ranks", "8", "64", "--zero", "shard"]) == 0
    read = json.loads(capsys.readouterr().out)
    assert [(each["ranks"], each["hosts"]) for each in read["predictions"]] == [(8, 1), (64, 8)]
    for each in read["predictions"]:
        assert 0 < each["interval"][0] <= each["efficiency"] <= each["interval"][1] <= 1.5
    assert {"buckets", "wire", "zero", "hosts", "bound"} >= {
        each["kind"] for each in read["changes"]
    }


@pytest.mark.system
def test_the_command_records(tmp_path: Path) -> None:
    step = tmp_path / "step.json"
    given = ["bench", "predict", "--record", "train:setup", "--steps", "9", "-o", str(step)]
    done = subprocess.run(
        [warm_python.executable(), "-m", "farandole", *given],
        cwd=EXAMPLE, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert len(load_step(step).steps_ms[0]) == 6


@pytest.mark.system
def test_the_program_of_the_page_runs(tmp_path: Path) -> None:
    done = subprocess.run(
        [warm_python.executable(), str(EXAMPLE / "train.py")],
        cwd=tmp_path, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "on 64 ranks" in done.stdout


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["nowhere.json"], "predict-step-file"),
        ([str(V100), "--within", "nvlink"], "predict-preset"),
        ([str(V100), "--links", "x", "--between", "25gbe"], "predict-links-twice"),
        ([str(V100), "--links", "nowhere.json"], "predict-links-file"),
        ([str(V100), "--ranks", "12"], "predict-ranks"),
        ([str(V100), "--ranks", "0"], "predict-option"),
        ([str(V100), "--jitter", "-1"], "predict-option"),
        ([str(V100), "--ranks-per-host", "0"], "predict-option"),
        ([str(V100), "--jitter", "nan"], "predict-option"),
        ([str(V100), "--bucket-mb", "inf"], "predict-option"),
        (["--record", "nowhere:setup"], "predict-record"),
        (["--record", "math:pi"], "predict-record"),
        (["--record", "sys:exc_info"], "predict-record"),
        (["--record", "nowhere:setup", "-o", "/nowhere/step.json"], "bench-file"),
    ],
)
def test_wrong_options_are_explained(
    options: list[str],
    name: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)  # where --record would write
    assert main(["bench", "predict", *options]) == 2
    assert f"[{name}]" in capsys.readouterr().err


def test_links_are_listed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "predict", "--list-links"]) == 0
    printed = capsys.readouterr().out
    for name in (*WITHIN, *BETWEEN):
        assert name in printed
    assert "https://" in printed
    assert main(["bench", "predict"]) == 2


def test_the_page_has_the_predictions_beside_published_runs() -> None:
    assert published.table() in (REPOSITORY / "docs" / "predict.md").read_text()


@pytest.mark.system
@pytest.mark.timeout(200)
def test_quick_run_compares_predictions_with_steps(tmp_path: Path) -> None:
    try:
        EmulatedHosts(1, rate=None).__exit__(None, None, None)
    except UnavailableError as error:
        pytest.skip(str(error))
    command = [sys.executable, "-m", "benchmarks.predict.run", "--quick", "--output", str(tmp_path)]
    done = subprocess.run(
        command, cwd=REPOSITORY, capture_output=True, text=True, timeout=180, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "predict.jsonl").read_text().splitlines()]
    assert [row["model"] for row in rows] == [*summary.MODELS]
    for row in rows:
        assert row["verified"]
        assert row["link_mb_s"] > 0
        low, high = row["predicted_interval_ms"]
        assert 0 < low <= row["predicted_ms"] <= high
        assert row["error"] == pytest.approx(row["predicted_ms"] / row["median_ms"] - 1, abs=1e-3)


ROW = {
    "rate": "100mbit",
    "hosts": 4,
    "model": "resnet",
    "alone_ms": 50.0,
    "predicted_ms": 110.0,
    "predicted_interval_ms": [104.0, 121.0],
    "median_ms": 100.0,
    "p95_ms": 130.0,
    "error": 0.1,
    "cores": 2,
    "commit": "abc",
    "timestamp": "2026-11-26T00:00:00",
}


def test_benchmarks_page_has_predictions() -> None:
    text = summary.SECTION.text([ROW])
    cells = "| 4 | 100 Mbit/s | 50 ms | 110 ms | 104 to 121 ms | 100 ms | +10.0 % |"
    assert f"| {summary.MODELS['resnet']} {cells}" in text
    assert summary.SECTION.text([]) == ""
    assert "110.0" in outcome.table([ROW])
    ((name, state),) = outcome.targets([ROW, {**ROW, "error": -0.2}])
    assert "10 %" in name
    assert state == "1 of 2, worst 20.0 %, short by 2.00x"
    assert outcome.targets([]) == []
