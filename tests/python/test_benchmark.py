# SPDX-License-Identifier: Apache-2.0
"""The benchmark runs, verifies what it measures, and reports it as documented."""

import json
import os
import socket
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from farandole.bench.rounds import percentile

import benchmarks.amp.summary as amp
import benchmarks.collectives.summary as collectives
import benchmarks.ddp.summary as ddp
import benchmarks.hosts.summary as hosts
import benchmarks.zero.summary as zero
import warm_python
from benchmarks import publish
from benchmarks.amp import outcome as amp_outcome
from benchmarks.amp import tcp_bytes, unscale_worker
from benchmarks.collectives import definition, measure, outcome
from benchmarks.collectives.lanes import LANES
from benchmarks.collectives.measured import Results
from benchmarks.collectives.operations import OPERATIONS
from benchmarks.ddp import training
from benchmarks.ddp.models import TASKS
from benchmarks.harness import script
from benchmarks.harness.groups import Groups
from benchmarks.harness.ranks import UnavailableError
from benchmarks.horovod import lanes as horovod
from benchmarks.hosts import lanes as hosts_lanes
from benchmarks.hosts import measure as hosts_measure
from benchmarks.hosts import outcome as hosts_outcome
from benchmarks.hosts.emulated import EmulatedHosts
from benchmarks.zero import memory_sets, rank
from benchmarks.zero.lanes import LANES as ZERO
from whole_matrix import of_whole_matrix

REPOSITORY = Path(__file__).parents[2]


def row(
    lane: str, median_us: float, *, operation: str = "all_reduce", ranks: int = 2, size: int = 2**20
) -> dict[str, object]:
    return {
        "operation": operation,
        "lane": lane,
        "ranks": ranks,
        "bytes": size,
        "median_us": median_us,
    }


def run(module: str, *arguments: str, is_forked: bool = True) -> str:
    """What `module` of benchmarks prints; fails with it if the module fails.

    Forks share memory with others until they write to it, so memory is measured without them.
    """
    python = warm_python.executable() if is_forked else sys.executable
    command = [python, "-m", f"benchmarks.{module}", *arguments]
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"  # mpirun is there
    done = subprocess.run(
        ["env", f"PATH={path}", *command],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_only_whole_runs_are_published_and_only_if_asked(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def folder(*options: str) -> Path | None:
        monkeypatch.setattr(sys, "argv", ["run.py", *options])
        parser = script.new_parser("What it measures.\n\nMore.", "little")
        parser.add_argument("--lanes", nargs="+")
        return script.folder_of(script.parse(parser))

    assert folder() == REPOSITORY / "build" / "benchmarks"
    assert folder("--publish") == REPOSITORY / "benchmarks" / "results"
    assert folder("--quick") is None
    assert folder("--lanes", "local") is None
    assert folder("--quick", "--output", "here") == Path("here")
    for part in (["--quick"], ["--lanes", "local"], ["--output", "here"]):
        with pytest.raises(SystemExit):
            folder("--publish", *part)
        assert "--publish" in capsys.readouterr().err


CPP = {"farandole_symmetric", "farandole_ordinary"}
PEERS = {"gloo_torch", "openmpi"}
ALL = CPP | {"farandole_torch", "farandole_mpi"} | PEERS
# busbw / (bytes / time) for two ranks, from nccl-tests' PERFORMANCE.md and gather.cu, scatter.cu.
BUS = {"all_reduce": 1, "broadcast": 1, "reduce": 1, "send_recv": 1, "send_stream": 1}
BUS |= dict.fromkeys(["reduce_scatter", "all_gather", "gather", "scatter", "all_to_all"], 0.5)


@pytest.mark.system
@pytest.mark.timeout(300)
def test_quick_run_measures_and_verifies_all_lanes(tmp_path: Path) -> None:
    printed = run("collectives.run", "--quick", "--output", str(tmp_path))
    assert "without " not in printed
    rows = rows_of(tmp_path / "collectives.jsonl")
    cells = [each for each in rows if "bytes" in each]
    assert {each["lane"] for each in cells} == ALL
    assert {each["bytes"] for each in cells} == {4, 1024, 256 * 1024}
    check_cells(cells)
    assert next(each for each in rows if each["lane"] == "import")["import_farandole_ms"] > 0
    assert {"commit", "cpu", "cores", "torch", "openmpi", "timestamp"} <= rows[0].keys()
    assert (tmp_path / "all_reduce.png").stat().st_size > 0
    assert (tmp_path / "all_reduce.svg").stat().st_size > 0


def check_cells(cells: list[dict[str, object]]) -> None:
    for each in cells:
        assert each["verified"]
        assert 0 < each["median_us"] <= each["p95_us"]
        busbw = each["bytes"] / each["median_us"] / 1e3 * BUS.get(each["operation"], 0)
        assert each["busbw_gb_s"] == pytest.approx(busbw, rel=0.01, abs=1e-3)


@pytest.mark.system
@pytest.mark.timeout(300)
def test_quick_run_measures_and_verifies_the_other_operations(tmp_path: Path) -> None:
    names = ["reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter"]
    names += ["all_to_all", "barrier", "send_recv"]
    kept = row("openmpi", 30.0)
    replaced = row("openmpi", 30.0, operation="broadcast")
    path = tmp_path / "collectives.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in (replaced, kept)))
    printed = run("collectives.run", "--quick", "--operation", *names, "--output", str(tmp_path))
    rows = rows_of(path)
    assert rows[0] == kept
    assert replaced not in rows
    check_cells([each for each in rows[1:] if "cannot" not in each])
    for name in [*names, "send_stream"]:
        lanes = {each["lane"] for each in rows if each["operation"] == name}
        symmetric = name in {"reduce_scatter", "all_gather", "broadcast"}
        assert lanes == (ALL if symmetric else ALL - {"farandole_symmetric"})
        sizes = {each["bytes"] for each in rows[1:] if each["operation"] == name}
        assert sizes == ({0} if name == "barrier" else {1024, 256 * 1024})
    assert not [each for each in rows if "cannot" in each], printed


def test_wrong_elements_fail_the_run() -> None:
    lane = next(iter(LANES.values()))
    good = {"wrong": 0, "entered_ns": [5, 20], "left_ns": [10, 30]}
    cell = measure.Cell(lane, OPERATIONS["broadcast"], 2, 1024)
    measure.verify(cell, [good, good])
    with pytest.raises(RuntimeError, match="broadcast of 1024 bytes: 3 wrong elements"):
        measure.verify(cell, [good, {**good, "wrong": 3}])
    barrier = measure.Cell(lane, OPERATIONS["barrier"], 2, 0)
    with pytest.raises(RuntimeError, match="a rank left before another had entered"):
        measure.verify(barrier, [good, {**good, "entered_ns": [5, 31]}])


def test_each_operation_expects_what_its_definition_says() -> None:
    expected = definition.expected
    got = {name: expected(name, 1, 2, 4, 2 if name == "send_stream" else 1) for name in OPERATIONS}
    wanted = {  # rank 0 has 1 2 3 4, rank 1 has 2 4 6 8
        "all_reduce": [3, 6, 9, 12],
        "reduce_scatter": [9, 12],
        "all_gather": [1, 2, 2, 4],
        "broadcast": [1, 2, 3, 4],
        "scatter": [3, 4],
        "all_to_all": [3, 4, 6, 8],
        "all_to_all_v": [2, 3, 4, 8],
        "send_recv": [1, 2, 3, 4],
        "send_stream": [1, 2, 3, 4, 5, 6, 7, 8],
    }
    assert {name: list(values) for name, values in got.items() if values is not None} == wanted
    assert list(expected("reduce", 0, 2, 4, 1)) == [3, 6, 9, 12]
    assert list(expected("gather", 0, 2, 4, 1)) == [1, 2, 2, 4]


@pytest.mark.system
@pytest.mark.timeout(120)
def test_quick_diagnosis_run_compares_both_libraries(tmp_path: Path) -> None:
    printed = run("diagnosis.run", "--quick", "--output", str(tmp_path))
    rows = rows_of(tmp_path / "diagnosis.jsonl")
    assert {(each["lane"], each["bytes"]) for each in rows} == {
        (lane, size) for lane in CPP for size in (1024, 4096, 64 * 1024, 2**20)
    }
    for each in rows:
        assert each["with_us"] > 0
        assert each["without_us"] > 0
    assert "target: <= 3 % from 4 KiB" in printed


@pytest.mark.system
@pytest.mark.timeout(120)
def test_quick_rounding_run_agrees_in_float64(tmp_path: Path) -> None:
    run("zero.rounding", "--quick", "--output", str(tmp_path))
    rows = rows_of(tmp_path / "zero_rounding.jsonl")
    apart = {(each["lane"], each["dtype"]): each["second_epoch"] for each in rows}
    assert len(apart) == len(rows) == 10
    assert 0 < apart["ours_full", "float64"] < 1e-9
    assert apart["ours_full", "float64"] == apart["ours_shard", "float64"]


@pytest.mark.system
def test_quick_horovod_run_verifies_all_lanes(tmp_path: Path) -> None:
    printed = run("horovod.run", "--quick", "--output", str(tmp_path))
    rows = rows_of(tmp_path / "horovod.jsonl")
    lanes = {(each["task"], each["lane"]) for each in rows if each["part"] == "steps"}
    assert lanes == {(task, lane) for task in horovod.TASKS for lane in horovod.STEPS}
    assert {each["lane"] for each in rows if each["part"] == "all_reduce"} == {*horovod.ALL_REDUCES}
    assert all(each["cpu_ms"] > 0 for each in rows if each["part"] == "steps")
    assert "averages over 2 ranks" in printed


@pytest.mark.system
def test_quick_report_run_tells_time_and_memory(tmp_path: Path) -> None:
    printed = run("report.run", "--quick", "--output", str(tmp_path), is_forked=False)
    (row,) = rows_of(tmp_path / "report.jsonl")
    assert row["peak_mb"] > row["import_mb"] > 0
    assert f"{row['read_mb']} MB: {row['wall_s']} s" in printed


@pytest.mark.system
@pytest.mark.timeout(120)
def test_quick_memory_run_finds_the_segment(tmp_path: Path) -> None:
    printed = run("memory.run", "--quick", "--output", str(tmp_path))
    two, four = rows_of(tmp_path / "memory.jsonl")
    assert (two["ranks"], four["ranks"]) == (2, 4)
    for each in (two, four):
        assert 0 < each["resident_made_bytes"] < each["resident_bytes"] <= each["segment_bytes"]
        assert each["mappings_per_rank"] == 1
        assert each["ranks"] <= each["descriptors_per_rank"] <= 2 * each["ranks"]
    assert two["segment_bytes"] < four["segment_bytes"]
    assert "page tables" in printed


@pytest.mark.system
@pytest.mark.timeout(300)
def test_quick_ddp_run_verifies_gradients_and_tells_what_each_lane_costs(tmp_path: Path) -> None:
    options = ["--quick", "--model", "transformer", "tiny", "--output", str(tmp_path)]
    printed = run("ddp.run", *options, "--part", "times", "sweep")
    run("ddp.run", *options, "--part", "memory", is_forked=False)
    rows = rows_of(tmp_path / "ddp.jsonl")
    by_part = {(each["part"], each["task"]): [] for each in rows}
    for each in rows:
        by_part[each["part"], each["task"]].append(each)
    assert list(by_part) == [
        ("times", "transformer"),
        ("times", "tiny"),
        ("memory", "transformer"),
        ("sweep", "transformer"),
    ]
    torch_lanes = ["torch_gloo_view", "torch_gloo", "torch_farandole"]
    lanes = ["local", "farandole", *torch_lanes, "farandole_copied"]
    times = by_part["times", "transformer"]
    assert [each["lane"] for each in times] == ["alone", *lanes]
    assert [each["lane"] for each in by_part["times", "tiny"]] == lanes
    for each in [*times, *by_part["times", "tiny"], *by_part["sweep", "transformer"]]:
        assert each["verified"]
        assert 0 < each["median_ms"] <= each["p95_ms"]
        assert ("ratio" in each) == (each["lane"] not in {"alone", "local"})
    alone, ours = times[0], times[2]
    assert ours["efficiency"] == pytest.approx(alone["median_ms"] / ours["median_ms"], rel=0.01)
    assert ours["stats_exposed_ms"] >= 0
    assert ours["latest_stats_exposed_ms"] >= 0
    for each in by_part["memory", "transformer"]:
        assert each["peak_bytes"] >= each["last_peak_bytes"]
        assert each["live_peak_bytes"] >= each["live_last_peak_bytes"]
    assert (tmp_path / "ddp_buckets.svg").stat().st_size > 0
    assert "Farandole, buckets of 0.25 MiB" in printed


@pytest.mark.timeout(60)
def test_ddp_lanes_wrong_in_one_element_are_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    rank = training.Rank(TASKS["transformer"], "quick", Groups(None, None))
    lane = rank.lane("local")
    training.backward(lane, rank.batches[0])
    assert rank.wrong_elements(lane) == 0
    next(lane.parameters()).grad[3, 5] += 1e-3
    assert rank.wrong_elements(lane) == 1
    next(lane.parameters()).grad = None
    assert rank.wrong_elements(lane) > 1


AMP_LANES = [
    "ours_full",
    "ours_full+scaler",
    "ours_shard",
    "ours_shard+scaler",
    "torch_ddp",
    "torch_ddp+torch_scaler",
    "ours_ddp",
    "ours_ddp+scaler",
    "ours_ddp+torch_scaler",
]
ZERO_LANES = ["local", "torch_zero", "ours_full", "ours_shard", "torch_ddp", "ours_ddp"]


@pytest.mark.system
@pytest.mark.timeout(300)
def test_quick_zero_run_verifies_parameters_and_tells_time_and_memory(tmp_path: Path) -> None:
    size = ["--quick", "--model", "transformer", "--ranks", "2"]
    memory = ["--part", "memory", "--lanes", "ours_shard"]
    printed = run("zero.run", *size, "--part", "times", "kernel", "--output", str(tmp_path))
    run("zero.run", *size, *memory, "--output", str(tmp_path), is_forked=False)
    rows = rows_of(tmp_path / "zero.jsonl")
    times = [each for each in rows if each["part"] == "times"]
    assert [each["lane"] for each in times] == ZERO_LANES
    for each in times:
        assert each["verified"]
        assert each["largest_error"] < 1e-3
        assert 0 < each["backward_ms"] < each["median_ms"] <= each["p95_ms"]
        assert ("ratio" in each) == (each["lane"] != "local")
        is_sharded = each["lane"] in {"torch_zero", "ours_full", "ours_shard"}
        elements = each["parameters"] // (2 if is_sharded else 1)
        assert each["predicted_state_bytes"] == 8 * elements
    memory_row = next(each for each in rows if each["part"] == "memory")
    assert 0 < memory_row["steady_bytes"] <= memory_row["last_peak_bytes"]
    assert memory_row["last_peak_bytes"] <= memory_row["peak_bytes"]
    kernels = {(each["lane"], each["processes"]): each for each in rows if each["part"] == "kernel"}
    ways = ("farandole", "torch", "memcpy")
    assert [*kernels] == [(way, processes) for processes in (1, 2) for way in ways]
    for each in kernels.values():
        assert each["gb_s"] == pytest.approx(each["bytes"] / each["median_ms"] / 1e6, rel=0.01)
    assert "Farandole's DDP and ZeRO, shard" in printed


def test_zero_lanes_wrong_in_one_parameter_are_found() -> None:
    expected = [torch.randn(8, 8), torch.randn(8)]
    parameters = [each.clone() for each in expected]
    assert rank.compare(parameters, expected) == (0, pytest.approx(0, abs=1e-3))
    digest = rank.digest(parameters)
    assert digest == rank.digest(expected)
    parameters[0][3, 5] += 1e-4  # as much as a step may change it
    wrong, largest = rank.compare(parameters, expected)
    assert wrong == 1
    assert largest == pytest.approx(1, abs=0.1)
    assert digest != rank.digest(parameters)
    parameters[1][2] = torch.nan
    assert rank.compare(parameters, expected)[0] == 2


def test_zero_lanes_are_measured_in_sets_that_fit_into_memory() -> None:
    parameters, gib = 125_000_000, 1 << 30
    sets_of = memory_sets.sets_of
    assert sets_of(ZERO_LANES, 33_600_000, 2, 22 * gib) == [ZERO_LANES]
    assert sets_of(ZERO_LANES, parameters, 2, 22 * gib) == [ZERO_LANES[:5], ["local", "ours_ddp"]]
    for ranks in (2, 4):
        for lanes in sets_of(ZERO_LANES, parameters, ranks, 22 * gib):
            assert lanes[0] == "local"
            needed = memory_sets.needed_bytes(lanes, parameters, ranks)
            assert needed <= memory_sets.USABLE * 22 * gib
    assert sets_of(["local"], parameters, 2, 23 * gib) == [["local"]]
    with pytest.raises(RuntimeError, match="torch_ddp on 4 ranks needs"):
        sets_of(["local", "torch_ddp"], parameters, 4, 8 * gib)
    assert sets_of(AMP_LANES, 33_600_000, 2, 22 * gib) == [AMP_LANES]
    both = ["ours_ddp+scaler", "ours_ddp+torch_scaler"]
    sets = [["ours_ddp", each] for each in both]
    assert sets_of(["ours_ddp", *both], parameters, 2, 10 * gib) == sets
    with pytest.raises(RuntimeError, match=r"ours_ddp\+scaler on 2 ranks needs"):
        sets_of(["ours_ddp", *both], parameters, 2, 8 * gib)


def test_sharded_optimizers_cost_what_the_formulas_say() -> None:
    assert [*ZERO] == ZERO_LANES
    cost = {
        name: (
            lane.state_bytes(1000, 4),
            lane.steady_bytes(1000, 4),
            lane.moved_bytes(1000, 4),
        )
        for name, lane in ZERO.items()
    }
    assert cost == {
        "local": (8000, 16000, 0),
        "torch_zero": (2000, 10000, 9000),
        "ours_full": (2000, 10000, 9000),
        "ours_shard": (2000, 10000, 6000),
        "torch_ddp": (8000, 16000, 6000),
        "ours_ddp": (8000, 16000, 6000),
    }


@pytest.mark.system
@pytest.mark.timeout(300)
def test_quick_amp_run_compares_steps_loops_and_bytes(tmp_path: Path) -> None:
    parts = ["--part", "times", "kernel", "wire"]
    printed = run("amp.run", "--quick", *parts, "--output", str(tmp_path))
    rows = rows_of(tmp_path / "amp.jsonl")
    assert all(each["verified"] for each in rows)
    times = [each for each in rows if each["part"] == "times"]
    assert [each["lane"] for each in times] == AMP_LANES
    for each in times:
        assert 0 < each["backward_ms"] < each["median_ms"] <= each["p95_ms"]
        assert ("ratio" in each) == ("+" in each["lane"])
    kernels = [each for each in rows if each["part"] == "kernel"]
    ways = ["farandole", "torch_kernel", "torch_scaler", "memcpy"]
    assert [(each["dtype"], each["processes"], each["lane"]) for each in kernels] == [
        (dtype, processes, way)
        for dtype in ("float32", "bfloat16")
        for processes in (1, 2)
        for way in ways
    ]
    for each in kernels:
        element_bytes = 4 if each["dtype"] == "float32" else 2
        assert each["bytes"] == 2 * element_bytes * each["elements"]
        assert ("of_peer" in each) == (each["lane"] in {"farandole", "torch_scaler"})
    sent = {each["lane"]: each for each in rows if each["part"] == "wire"}
    halved = {"ours": ["ours_hook", "ours_wire"], "torch": ["torch_hook"], "shard": ["shard_wire"]}
    assert [*sent] == [lane for whole, halves in halved.items() for lane in [whole, *halves]]
    for whole in (sent[lane] for lane in halved):
        assert whole["bytes"] >= 4 * whole["parameters"]
        assert whole["loss"] < whole["loss_before"]
        part = 0.75 if whole["lane"] == "shard" else 0.5  # new parameters travel as they are
        for half in (sent[lane] for lane in halved[whole["lane"]]):
            assert half["bytes_ratio"] == pytest.approx(half["bytes"] / whole["bytes"], abs=1e-4)
            assert half["bytes_ratio"] == pytest.approx(part, abs=0.01)
            assert half["loss"] != whole["loss"]
            assert abs(half["loss_percent"]) < 0.5
    assert "Farandole's DDP and ZeRO, shard, GradScaler" in printed


def test_gradients_that_are_divided_wrongly_are_found() -> None:
    def wrong() -> int:
        return gradients.answer(["verify"])["wrong"]

    gradients = unscale_worker.Gradients(0, "quick", torch.bfloat16)
    for way in ("farandole", "torch_kernel", "torch_scaler", "memcpy"):
        assert len(gradients.answer([way, "3", "1"])["times_ns"]) == 3
    assert wrong() == 0
    right = gradients.ways["farandole"]
    gradients.ways["farandole"] = replace(right, found=lambda: False)
    assert wrong() == 3  # two Inf and a NaN
    gradients.ways["farandole"] = replace(right, found=lambda: True)
    assert wrong() == 2  # both runs without
    gradients.ways["farandole"] = replace(right, run=lambda: None, found=lambda: False)
    assert wrong() > 30_000
    gradients.ways["farandole"] = right
    assert wrong() == 0
    gradients.gradients()[3].view(-1)[5] += 1
    assert wrong() > 0


def test_targets_of_scalers_tell_when_rounds_differ_too_much() -> None:
    shared = {"part": "times", "steps": 100, "ratio_quartiles": [0.99, 1.02]}
    ours = {**shared, "lane": "ours_full+scaler", "ratio": 1.004}
    torch = {**shared, "lane": "torch_ddp+torch_scaler", "ratio": 1.05}
    name = "Farandole's DDP and ZeRO, full, GradScaler: step <= 1.02x without"
    targets = amp_outcome.targets
    peer = " (torch's DDP, AdamW and GradScaler 1.050x)"
    assert targets([ours, torch]) == [(name, f"1.004x, reached{peer}")]
    assert targets([{**ours, "ratio": 1.1}]) == [(name, "1.100x, short by 1.08x")]
    ours["ratio_quartiles"] = [0.9, 1.1]
    assert targets([ours]) == [(name, "1.004x, cannot be told: it is uncertain by 0.037")]
    wire = {"part": "wire", "lane": "ours_wire", "bytes_ratio": 0.5, "loss_percent": -0.6}
    states = [state for _, state in targets([wire])]
    assert states == ["0.5000x, reached", "0.600 %, short by 1.20x"]


def test_bytes_over_tcp_are_counted_by_the_kernel() -> None:
    received = tcp_bytes.received
    before = received()
    with socket.create_server(("127.0.0.1", 0)) as server:
        near = socket.create_connection(server.getsockname())
        far, _ = server.accept()
        with near, far:
            far.sendall(bytes(1000))
            near.sendall(bytes(100_000))
            assert len(near.recv(1000, socket.MSG_WAITALL)) == 1000
            assert len(far.recv(100_000, socket.MSG_WAITALL)) == 100_000
            assert received() - before == 101_000


@pytest.mark.system
@of_whole_matrix
@pytest.mark.timeout(200)
def test_quick_hosts_run_measures_all_parts(tmp_path: Path) -> None:
    try:
        EmulatedHosts(1, rate=None).__exit__(None, None, None)
    except UnavailableError as error:
        pytest.skip(str(error))
    # Not forked: a fork is in the namespace of the process that it is forked from.
    printed = run("hosts.run", "--quick", "--output", str(tmp_path), is_forked=False)
    rows = rows_of(tmp_path / "hosts.jsonl")
    by_part = {
        part: [each for each in rows if each["part"] == part] for part in hosts_lanes.OF_PART
    }
    reduced, steps, formed = by_part.values()
    assert not [each for each in rows if "cannot" in each], printed
    assert {each["lane"] for each in reduced} == {*hosts_lanes.OF_PART["all_reduce"]}
    assert {each["bytes"] for each in reduced} == {16 << 10, 1 << 20}
    assert [each["lane"] for each in steps] == hosts_lanes.OF_PART["steps"]
    assert [(each["lane"], each["ranks"]) for each in formed] == [("farandole", 4), ("gloo", 4)]
    for each in [*reduced, *steps]:
        assert each["verified"]
        assert 0 < each["best_ms"] <= each["median_ms"] <= each["p95_ms"]
        assert each["cpu_s_a_gb"] > 0
    for each in formed:
        assert 0 < each["median_ms"] < each["ready_ms"]
        assert each["cpu_ms"] > 0
    assert all("of_raw" in each for each in reduced)
    assert all(
        "of_bound" in each for each in steps if each["lane"] not in {"raw", "alone", "alone_zero"}
    )
    assert "OpenMPI over TCP" in printed


def test_steps_are_bound_by_computation_or_by_plain_tcp() -> None:
    medians = {"raw": 100.0, "alone": 60.0, "alone_zero": 120.0}
    bounds = {lane: hosts_measure.bound_ms(lane, medians) for lane in hosts_lanes.OF_PART["steps"]}
    assert bounds == {
        **dict.fromkeys(["raw", "alone", "alone_zero"]),
        "farandole": 100,
        "gloo": 100,
        "farandole_bf16": 60,
        "gloo_bf16": 60,
        **dict.fromkeys(["farandole_zero", "farandole_zero_overlap"], 120),
        **dict.fromkeys(["farandole_zero_host", "gloo_zero"], 120),
    }
    assert hosts_measure.bound_ms("farandole", {"alone": 60.0}) is None


def test_layouts_of_ranks_on_hosts_are_told_in_words() -> None:
    text = hosts_lanes.layout_text
    assert text("0,1") == "2 hosts x 1 rank"
    assert text("0,0") == "1 host x 2 ranks"
    assert text("0,0,1,1") == "2 hosts x 2 ranks, blocked"
    assert text("0,1,0,1") == "2 hosts x 2 ranks, alternating"
    assert text("0,0,1") == "ranks on hosts 0,0,1"
    assert "farandole_zero_host" not in hosts_lanes.lanes_of("steps", "0,1")
    assert "farandole_zero_host" in hosts_lanes.lanes_of("steps", "0,0,1,1")


HOSTS = {"part": "all_reduce", "hosts": "0,0,1,1", "rate": "1gbit", "bytes": 16 << 20}
HOSTS |= {"commit": "abc", "timestamp": "2026-01-02T03:04:05+00:00", "cores": 2}


def test_benchmarks_page_has_several_hosts() -> None:
    raw = {**HOSTS, "lane": "raw", "median_ms": 140.0, "of_raw": 1.0, "cpu_s_a_gb": 0.6}
    ours = {**raw, "lane": "farandole", "median_ms": 145.0, "of_raw": 0.966, "cpu_s_a_gb": 0.75}
    lacks = {**HOSTS, "lane": "openmpi", "bytes": 0, "cannot": "mpirun is missing"}
    step = {**HOSTS, "part": "steps", "lane": "farandole", "median_ms": 1170.0, "p95_ms": 1200.0}
    step |= {"bound_ms": 1130.0, "of_bound": 1.035}
    group = {**HOSTS, "part": "formation", "lane": "gloo", "median_ms": 3.25, "p95_ms": 4.0}
    group |= {"ready_ms": 5.0, "cpu_ms": 2.0}
    text = hosts.SECTION.text([raw, ours, lacks, step, group])
    assert "| all_reduce, 1 Gbit/s | size | plain TCP | Farandole |" in text
    cells = "16 MiB | 140.0 ms (0.60) | 145.0 ms, 0.97 (0.75) |"
    assert f"| 2 hosts x 2 ranks, blocked | {cells}" in text
    assert "| Farandole | 1170 ms | 1200 ms | 1130 ms | 1.035x |" in text
    assert "| 2 hosts x 2 ranks, blocked | gloo | 3.2 ms | 4.0 ms | 5.0 ms | 2.0 ms |" in text
    assert "Without OpenMPI over TCP: mpirun is missing." in text
    assert ".svg" not in text
    assert ".svg" in hosts.SECTION.text([{**ours, "bytes": size} for size in (1, 2, 3)])
    assert hosts.SECTION.text([]) == ""


def test_targets_of_hosts_and_what_could_not_run() -> None:
    ours = {**HOSTS, "lane": "farandole", "median_ms": 150.0, "p95_ms": 160.0, "of_raw": 0.93}
    ours["cpu_s_a_gb"] = 0.75
    half = {**ours, "lane": "farandole_bf16", "median_ms": 75.0}
    group = {**HOSTS, "part": "formation", "hosts": "0,0", "bytes": 0, "lane": "farandole"}
    group |= {"median_ms": 300.0}
    lacks = {**HOSTS, "lane": "openmpi", "bytes": 0, "cannot": "mpirun is missing"}
    assert hosts_outcome.targets([ours, half, lacks, group]) == [
        ("2 hosts x 2 ranks, blocked, 16 MiB: >= 0.95 of plain TCP", "0.930, short by 1.02x"),
        ("2 hosts x 2 ranks, blocked, 16 MiB: bfloat16 >= 1.9x faster", "2.00x, reached"),
        ("1 host x 2 ranks: init_process_group() <= 150 ms", "300 ms, short by 2.00x"),
    ]
    text = hosts_outcome.table([ours, lacks])
    assert text.splitlines()[-1] == "without OpenMPI over TCP: mpirun is missing"


def test_percentile_is_a_measured_value() -> None:
    assert percentile(range(1, 101), 95) == 95
    assert percentile([3.0], 95) == 3.0
    assert percentile([1, 2, 3, 4], 50) == 2


def test_targets_say_by_how_much_they_are_missed() -> None:
    rows = [row("farandole_symmetric", 10), row("gloo_torch", 150), row("openmpi", 31)]
    states = dict(outcome.targets(Results(rows)))
    name = "2 ranks, C++ symmetric, 256 KiB to 64 MiB"
    assert states[f"{name}: >= 20x gloo"] == "15x at 1 MiB, short by 1.33x"
    assert states[f"{name}: >= 3x OpenMPI"] == "3.1x at 1 MiB, reached"
    assert states["2 ranks, through torch, 1 KiB: <= 20 us"] == "not measured"


def test_targets_of_other_operations_name_what_a_peer_lacks() -> None:
    rows = [
        row(lane, time, operation="gather")
        for lane, time in (("farandole_torch", 10), ("openmpi", 31))
    ]
    rows.append({**row("gloo_torch", 0, operation="gather"), "cannot": "not supported"})
    del rows[-1]["median_us"]
    states = dict(outcome.operation_targets(rows))
    name = "2 ranks, gather through torch, from 256 KiB"
    assert states == {
        f"{name}: >= 8x gloo": "n/a in gloo",
        f"{name}: >= 1.2x OpenMPI": "3.1x at 1 MiB, reached",
    }
    text = collectives.OTHERS.text(
        [{**each, "commit": "abc", "timestamp": "2026-01-02T03:04:05"} for each in rows]
    )
    assert "| gather | - | n/a | - | - | n/a | - |" in text


def test_what_a_library_lacks_is_said_in_its_own_words() -> None:
    cell = measure.Cell(LANES["gloo_torch"], OPERATIONS["gather"], 2, 1024)
    cell.cannot = "gather is not supported"
    found = measure.make_row(cell)
    assert found["cannot"] == "gather is not supported"
    assert "median_us" not in found
    rows = [row("openmpi", 31, operation="gather", size=1024), found]
    text = outcome.table(Results(rows, "gather"), 2)
    assert text.splitlines()[-1] == "n/a in gloo: gather is not supported"
    assert text.splitlines()[-2].split() == ["1", "KiB", "31.0", "us", "n/a"]


def test_benchmarks_page_has_training_steps_with_and_without_ddp() -> None:
    machine = {"commit": "abc", "timestamp": "2026-01-02T03:04:05+00:00", "task": "tiny"}
    local = {"part": "times", "lane": "local", "median_ms": 40.0, **machine}
    ours = {"part": "times", "lane": "farandole", "median_ms": 41.0, **machine}
    ours |= {"ratio": 1.025, "ratio_quartiles": [0.99, 1.06]}
    peak = {"part": "memory", "lane": "farandole", "peak_bytes": 3 << 20, **machine}
    text = ddp.SECTION.text([local, ours, peak])
    assert "| without DDP | 40.0 ms |  |  |  |  |" in text
    assert "| Farandole | 41.0 ms | 1.025x | 0.990x to 1.060x |  | 3 MiB |" in text
    assert ddp.SECTION.text([]) == ""


def test_benchmarks_page_has_training_with_sharded_optimizers() -> None:
    machine = {"commit": "abc", "timestamp": "2026-01-02T03:04:05+00:00", "cores": 2}
    shared = {"task": "gpt2", "ranks": 2, **machine}
    times = {"part": "times", "backward_ms": 900.0, "state_bytes": 8 << 20, **shared}
    local = {**times, "lane": "local", "median_ms": 1000.0, "update_ms": 100.0, "set": 0}
    again = {**local, "median_ms": 1100.0, "set": 1}
    ours = {**times, "lane": "ours_full", "median_ms": 950.0, "update_ms": 50.0}
    ours |= {"ratio": 0.95, "ratio_quartiles": [0.94, 0.96]}
    memory = {"part": "memory", "lane": "ours_full", "live_steady_bytes": 24 << 20, **shared}
    kernel = {"part": "kernel", "task": "kernel", "ranks": 1, "processes": 1, "lane": "torch"}
    kernel |= {"elements": 1000, "gb_s": 12.34}
    text = zero.SECTION.text([local, ours, again, memory, kernel])
    cells = "1000 ms |  |  | 900 ms | 100.0 ms |  | 8 MiB |"
    assert f"| no communication, AdamW | {cells}" in text
    cells = "950 ms | 0.950x | 0.940x to 0.960x | 900 ms | 50.0 ms | 24 MiB | 8 MiB |"
    assert f"| Farandole's DDP and ZeRO, full | {cells}" in text
    assert "1100" not in text
    assert "in 1 process at once torch's fused 12.3." in text
    assert zero.SECTION.text([]) == ""


def test_benchmarks_page_has_what_a_scaler_costs() -> None:
    machine = {"commit": "abc", "timestamp": "2026-01-02T03:04:05+00:00", "cores": 2}
    without = {"part": "times", "lane": "ours_full", "set": 0, "median_ms": 400.0, **machine}
    without["steps"] = 100
    scaled = {**without, "lane": "ours_full+scaler", "median_ms": 404.0, "ratio": 1.011}
    scaled["ratio_quartiles"] = [0.99, 1.02]
    kernel = {"part": "kernel", "lane": "memcpy", "dtype": "bfloat16", "processes": 2, **machine}
    kernel |= {"elements": 1000, "gb_s": 12.34}
    wire = {"part": "wire", "steps": 200, "parameters": 1000, "loss": 1.503, **machine}
    half = {**wire, "lane": "ours_wire", "bytes_ratio": 0.5012, "loss_percent": 0.2}
    rows = [without, scaled, kernel, {**wire, "lane": "ours"}, half]
    text = amp.SECTION.text(rows)
    cells = "GradScaler | 400 ms | 404 ms | 1.011x | 0.990x to 1.020x | 100 |"
    assert f"| Farandole's DDP and ZeRO, full | {cells}" in text
    assert "1,000 gradients, in GB/s: bfloat16 in 2 processes at once: a copy 12.3." in text
    assert "DDP, wire_dtype bf16 0.501x the bytes, loss 1.5030 (+0.2000 %)." in text
    assert amp.SECTION.text([]) == ""


def test_readme_compares_five_times() -> None:
    ddp = [
        {"part": "times", "task": "resnet50", "ranks": 2, "lane": lane, "median_ms": median_ms}
        for lane, median_ms in (("farandole", 300.0), ("torch_gloo_view", 400.0))
    ]
    zero = [
        {"part": "times", "task": "gpt2", "ranks": 4, "lane": lane, "median_ms": median_ms}
        for lane, median_ms in (("ours_shard", 1000.0), ("torch_zero", 2000.0))
    ]
    collectives = [
        row(lane, median_us, ranks=4, size=16 * 2**20)
        for lane, median_us in (("farandole_torch", 5000.0), ("gloo_torch", 20000.0))
    ]
    text = publish.short_section(ddp, zero, collectives)
    assert "ResNet-50, 2 ranks | 300 ms | 400 ms | DDP, gloo | 0.75x |" in text
    assert "125 M parameters, 4 ranks | 1000 ms | 2000 ms | DDP, ZeRO, gloo | 0.50x |" in text
    assert "all_reduce of 16 MiB, 4 ranks | 5000 us | 20.0 ms | gloo | 0.25x |" in text
    assert len(publish.comparison(ddp[:1], zero, collectives)) == 2


def test_a_page_gets_the_numbers_between_its_markers() -> None:
    machine = {"cores": 2, "cpu": "a CPU", "torch": "2", "openmpi": "5", "commit": "abc"}
    rows = [{**row("gloo_torch", 150), **machine, "timestamp": "2026-01-02T03:04:05+00:00"}]
    text = collectives.ALL_REDUCE.text(rows)
    assert "| 1 MiB | - | - | - | 150 us | - | - | - | - |" in text
    begin, end = publish.BEGIN, publish.END
    readme = f"before\n{begin}\nold\n{end}\nafter\n"
    assert publish.filled(readme, "new") == f"before\n{begin}\nnew\n{end}\nafter\n"
