# SPDX-License-Identifier: Apache-2.0
"""The benchmark runs, verifies what it measures, and reports it as documented."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

BENCHMARKS = Path(__file__).parents[2] / "benchmarks"


@pytest.fixture
def scripts(monkeypatch: pytest.MonkeyPatch) -> Iterator[SimpleNamespace]:
    """The modules of benchmarks/collectives, which are scripts beside each other."""
    monkeypatch.syspath_prepend(str(BENCHMARKS / "collectives"))
    monkeypatch.syspath_prepend(str(BENCHMARKS))
    import measure
    import operations
    import report
    import update_readme

    yield SimpleNamespace(
        measure=measure, operations=operations, report=report, update_readme=update_readme
    )
    for name in ("measure", "operations", "report", "lanes", "summary", "update_readme"):
        sys.modules.pop(name, None)


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


def run(script: str, *arguments: str) -> str:
    """What `script` prints; fails with it if the script fails."""
    command = [sys.executable, str(BENCHMARKS / script), *arguments]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def rows_of(path: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


CPP = {"farandole_symmetric", "farandole_ordinary"}
PEERS = {"gloo_torch", "openmpi"}
LANES = CPP | {"farandole_torch"} | PEERS
# busbw / (bytes / time) for two ranks, from nccl-tests' PERFORMANCE.md and gather.cu, scatter.cu.
BUS = {"all_reduce": 1, "broadcast": 1, "reduce": 1, "send_recv": 1, "send_stream": 1}
BUS |= dict.fromkeys(["reduce_scatter", "all_gather", "gather", "scatter", "all_to_all"], 0.5)


@pytest.mark.timeout(300)
def test_quick_run_measures_and_verifies_all_lanes(tmp_path: Path) -> None:
    printed = run("collectives/run.py", "--quick", "--output", str(tmp_path))
    assert "without " not in printed
    rows = rows_of(tmp_path / "collectives.jsonl")
    cells = [each for each in rows if "bytes" in each]
    assert {each["lane"] for each in cells} == LANES
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


@pytest.mark.timeout(300)
def test_quick_run_measures_and_verifies_the_other_operations(tmp_path: Path) -> None:
    names = ["reduce_scatter", "all_gather", "broadcast", "reduce", "gather", "scatter"]
    names += ["all_to_all", "barrier", "send_recv"]
    kept = row("openmpi", 30.0)
    replaced = row("openmpi", 30.0, operation="broadcast")
    path = tmp_path / "collectives.jsonl"
    path.write_text("".join(json.dumps(each) + "\n" for each in (replaced, kept)))
    printed = run("collectives/run.py", "--quick", "--operation", *names, "--output", str(tmp_path))
    rows = rows_of(path)
    assert rows[0] == kept
    assert replaced not in rows
    check_cells([each for each in rows[1:] if "cannot" not in each])
    for name in [*names, "send_stream"]:
        lanes = {each["lane"] for each in rows if each["operation"] == name}
        symmetric = name in {"reduce_scatter", "all_gather", "broadcast"}
        assert lanes == (LANES if symmetric else LANES - {"farandole_symmetric"})
        sizes = {each["bytes"] for each in rows[1:] if each["operation"] == name}
        assert sizes == ({0} if name == "barrier" else {1024, 256 * 1024})
    assert not [each for each in rows if "cannot" in each], printed


def test_wrong_elements_fail_the_run(scripts: SimpleNamespace) -> None:
    operations = scripts.operations.OPERATIONS
    lane = next(iter(scripts.measure.LANES))
    good = {"wrong": 0, "entered_ns": [5, 20], "left_ns": [10, 30]}
    cell = scripts.measure.Cell(lane, operations["broadcast"], 2, 1024)
    scripts.measure.verify(cell, [good, good])
    with pytest.raises(RuntimeError, match="broadcast of 1024 bytes: 3 wrong elements"):
        scripts.measure.verify(cell, [good, {**good, "wrong": 3}])
    barrier = scripts.measure.Cell(lane, operations["barrier"], 2, 0)
    with pytest.raises(RuntimeError, match="a rank left before another had entered"):
        scripts.measure.verify(barrier, [good, {**good, "entered_ns": [5, 31]}])


def test_each_operation_expects_what_its_definition_says(scripts: SimpleNamespace) -> None:
    expected = scripts.operations.expected
    got = {
        name: expected(name, 1, 2, 4, 2 if name == "send_stream" else 1)
        for name in scripts.operations.OPERATIONS
    }
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


@pytest.mark.timeout(120)
def test_quick_diagnosis_run_compares_both_libraries(tmp_path: Path) -> None:
    printed = run("diagnosis/run.py", "--quick", "--output", str(tmp_path))
    rows = rows_of(tmp_path / "diagnosis.jsonl")
    assert {(each["lane"], each["bytes"]) for each in rows} == {
        (lane, size) for lane in CPP for size in (1024, 4096, 64 * 1024, 2**20)
    }
    for each in rows:
        assert each["with_us"] > 0
        assert each["without_us"] > 0
    assert "target: <= 3 % from 4 KiB" in printed


@pytest.mark.timeout(120)
def test_quick_memory_run_finds_the_segment(tmp_path: Path) -> None:
    printed = run("memory/run.py", "--quick", "--output", str(tmp_path))
    two, four = rows_of(tmp_path / "memory.jsonl")
    assert (two["ranks"], four["ranks"]) == (2, 4)
    for each in (two, four):
        assert 0 < each["resident_made_bytes"] < each["resident_bytes"] <= each["segment_bytes"]
        assert each["mappings_per_rank"] == 1
        assert each["ranks"] <= each["descriptors_per_rank"] <= 2 * each["ranks"]
    assert two["segment_bytes"] < four["segment_bytes"]
    assert "page tables" in printed


@pytest.mark.timeout(300)
def test_quick_ddp_run_verifies_gradients_and_tells_what_each_lane_costs(tmp_path: Path) -> None:
    models = ["--model", "transformer", "tiny"]
    parts = ["--part", "times", "memory", "sweep"]
    printed = run("ddp/run.py", "--quick", *models, *parts, "--output", str(tmp_path))
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
    lanes = ["local", "farandole", *torch_lanes]
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
    monkeypatch.syspath_prepend(str(BENCHMARKS / "collectives"))
    monkeypatch.syspath_prepend(str(BENCHMARKS / "ddp"))
    import torch
    from models import TASKS
    from training import Rank, backward
    from ways import Groups

    monkeypatch.setattr(torch.distributed, "get_rank", lambda: 0)
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    rank = Rank(TASKS["transformer"], "quick", Groups(None, None))
    lane = rank.lane("local")
    backward(lane, rank.batches[0])
    assert rank.wrong_elements(lane) == 0
    next(lane.parameters()).grad[3, 5] += 1e-3
    assert rank.wrong_elements(lane) == 1
    next(lane.parameters()).grad = None
    assert rank.wrong_elements(lane) > 1
    for name in ("models", "training", "ways", "usage"):
        sys.modules.pop(name, None)


def test_percentile_is_a_measured_value(scripts: SimpleNamespace) -> None:
    assert scripts.measure.percentile(range(1, 101), 95) == 95
    assert scripts.measure.percentile([3.0], 95) == 3.0
    assert scripts.measure.percentile([1, 2, 3, 4], 50) == 2


def test_targets_say_by_how_much_they_are_missed(scripts: SimpleNamespace) -> None:
    rows = [row("farandole_symmetric", 10), row("gloo_torch", 150), row("openmpi", 31)]
    states = dict(scripts.report.targets(scripts.report.Results(rows)))
    name = "2 ranks, C++ symmetric, 256 KiB to 64 MiB"
    assert states[f"{name}: >= 20x gloo"] == "15x at 1 MiB, short by 1.33x"
    assert states[f"{name}: >= 3x OpenMPI"] == "3.1x at 1 MiB, reached"
    assert states["2 ranks, through torch, 1 KiB: <= 20 us"] == "not measured"


def test_targets_of_other_operations_name_what_a_peer_lacks(scripts: SimpleNamespace) -> None:
    rows = [
        row(lane, time, operation="gather")
        for lane, time in (("farandole_torch", 10), ("openmpi", 31))
    ]
    rows.append({**row("gloo_torch", 0, operation="gather"), "cannot": "not supported"})
    del rows[-1]["median_us"]
    states = dict(scripts.report.operation_targets(rows))
    name = "2 ranks, gather through torch, from 256 KiB"
    assert states == {
        f"{name}: >= 8x gloo": "n/a in gloo",
        f"{name}: >= 1.2x OpenMPI": "3.1x at 1 MiB, reached",
    }
    text = scripts.update_readme.operations_section(
        [{**each, "commit": "abc", "timestamp": "2026-01-02T03:04:05"} for each in rows]
    )
    assert "| gather | - | n/a | - | - | n/a | - |" in text


def test_what_a_library_lacks_is_said_in_its_own_words(scripts: SimpleNamespace) -> None:
    cell = scripts.measure.Cell(
        scripts.measure.LANES[-1], scripts.operations.OPERATIONS["gather"], 2, 1024
    )
    cell.cannot = "gather is not supported"
    found = scripts.measure.make_row(cell)
    assert found["cannot"] == "gather is not supported"
    assert "median_us" not in found
    rows = [row("openmpi", 31, operation="gather", size=1024), found]
    text = scripts.report.table(scripts.report.Results(rows, "gather"), 2)
    assert text.splitlines()[-1] == "n/a in gloo: gather is not supported"
    assert text.splitlines()[-2].split() == ["1", "KiB", "31.0", "us", "n/a"]


def test_readme_has_training_steps_with_and_without_ddp(scripts: SimpleNamespace) -> None:
    machine = {"commit": "abc", "timestamp": "2026-01-02T03:04:05+00:00", "task": "tiny"}
    local = {"part": "times", "lane": "local", "median_ms": 40.0, **machine}
    ours = {"part": "times", "lane": "farandole", "median_ms": 41.0, **machine}
    ours |= {"ratio": 1.025, "ratio_quartiles": [0.99, 1.06]}
    peak = {"part": "memory", "lane": "farandole", "peak_bytes": 3 << 20, **machine}
    text = scripts.update_readme.ddp_section([local, ours, peak])
    assert "| without DDP | 40.0 ms |  |  |  |  |" in text
    assert "| Farandole | 41.0 ms | 1.025x | 0.990x to 1.060x |  | 3 MiB |" in text
    assert scripts.update_readme.ddp_section([]) == ""


def test_readme_gets_the_numbers_between_its_markers(scripts: SimpleNamespace) -> None:
    machine = {"cores": 2, "cpu": "a CPU", "torch": "2", "openmpi": "5", "commit": "abc"}
    rows = [{**row("gloo_torch", 150), **machine, "timestamp": "2026-01-02T03:04:05+00:00"}]
    text = scripts.update_readme.section(scripts.report.Results(rows))
    assert "| 1 MiB | - | - | - | 150 us | - | - | - | - |" in text
    begin, end = scripts.update_readme.BEGIN, scripts.update_readme.END
    readme = f"before\n{begin}\nold\n{end}\nafter\n"
    assert scripts.update_readme.filled(readme, "new") == f"before\n{begin}\nnew\n{end}\nafter\n"
