# SPDX-License-Identifier: Apache-2.0
"""`farandole bench collectives`: formulas, verification, options, ranks of every launcher."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
from farandole.bench import sizes
from farandole.bench.collectives import command_line, lanes, measure, plot, rank, table, values
from farandole.bench.collectives.lanes import TorchLane
from farandole.bench.collectives.operations import OPERATIONS, bandwidths
from farandole.bench.collectives.plan import Plan
from farandole.bench.collectives.values import DTYPES, REDUCTIONS
from farandole.errors import Error

import ranks
import run_command
import warm_python
from launch_lines import bench_lines, launch_lines, ranks_of

DEADLINE_S = 60


def bench(*arguments: str, start: list[str] | None = None) -> subprocess.CompletedProcess[str]:
    """Runs `farandole bench collectives`, as the program of ``start`` if that is given."""
    command = start or [warm_python.executable()]
    return subprocess.run(
        [*command, "-m", "farandole", "bench", "collectives", *arguments],
        env=run_command.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def plan_of(*arguments: str) -> Plan:
    return command_line.plan_of(command_line.make_parser().parse_args([*arguments]))


# nccl-tests, doc/PERFORMANCE.md: 8 ranks, an all_reduce of 1 GB in 10 ms.
@pytest.mark.parametrize(
    ("name", "busbw"),
    [
        ("all_reduce", 175.0),
        ("reduce_scatter", 87.5),
        ("all_gather", 87.5),
        ("all_to_all", 87.5),
        ("gather", 87.5),
        ("scatter", 87.5),
        ("broadcast", 100.0),
        ("reduce", 100.0),
        ("send_recv", 100.0),
    ],
)
def test_bandwidths_are_those_of_nccl_tests_on_a_worked_example(name: str, busbw: float) -> None:
    algbw, found = bandwidths(OPERATIONS[name], 10**9, 10_000.0, 8)
    assert (algbw, found) == (100.0, busbw)


def test_sizes_count_the_large_buffer_in_whole_blocks_as_nccl_tests_does() -> None:
    gather, reduce = OPERATIONS["all_gather"], OPERATIONS["all_reduce"]
    assert gather.count_of(1024, 4, 3) == 255
    assert (gather.input_elements(255, 3), gather.output_elements(255, 3)) == (85, 255)
    scatter = OPERATIONS["reduce_scatter"]
    assert (scatter.input_elements(255, 3), scatter.output_elements(255, 3)) == (255, 85)
    assert reduce.count_of(1024, 4, 3) == 256
    assert gather.count_of(8, 8, 4) == 4  # at least one element a rank


def test_sizes_are_read_as_nccl_tests_reads_them() -> None:
    texts = ("8", "4K", "1g", "64M", "2KiB")
    assert [sizes.size_of("-b", text) for text in texts] == [8, 4096, 2**30, 2**26, 2048]
    assert list(sizes.sizes_between(8, 100, factor=2)) == [8, 16, 32, 64]
    assert list(sizes.sizes_between(8, 30, step=10)) == [8, 18, 28]
    assert [sizes.size_text(each) for each in (8, 4096, 2**30, 5000)] == [
        "8 B", "4 KiB", "1 GiB", "5000 B",
    ]  # fmt: skip


@pytest.mark.parametrize("ranks", [1, 2, 3, 8, 64])
@pytest.mark.parametrize("dtype", DTYPES)
def test_values_are_exact_in_every_dtype_and_on_many_ranks(dtype: str, ranks: int) -> None:
    kind = DTYPES[dtype]
    operation = OPERATIONS["all_reduce"]
    for op in REDUCTIONS:
        if op == "avg":
            continue
        expected = values.reduced(operation, op, ranks, kind)
        assert torch.equal(expected.to(kind).double(), expected), op


def test_each_wrong_element_is_counted() -> None:
    period = torch.arange(values.PERIOD).double()
    found = torch.empty(3 * values.PERIOD + 5)
    values.fill(found, period)
    parts = [(period, 0)]
    assert values.wrong_elements(found, parts, 0.0) == 0
    found[7], found[-1] = -1, torch.nan
    assert values.wrong_elements(found, parts, 0.0) == 2
    assert values.wrong_elements(found, parts, 1e-3) == 2
    values.fill(found, period.roll(-1))  # a block that begins in the wrong place
    assert values.wrong_elements(found, parts, 0.0) == len(found)
    values.spoil(found)
    assert values.wrong_elements(found, parts, 0.0) == len(found)


class Wrong(TorchLane):
    """A library that changes one element on rank 1."""

    def call(self, operation: Any, op: str, source: Any, target: Any, root: int) -> Any:
        right = super().call(operation, op, source, target, root)

        def call() -> None:
            right()
            if farandole.rank() == 1:
                target[0] += 1

        return call


def every_case(rank_: int, world_size: int) -> list[dict[str, Any]]:
    """All operations, dtypes and reductions of ours; and a library that is wrong."""
    plan = plan_of("all", "-b", "64", "-e", "16K", "-f", "256", "-d", "all", "-o", "all", "--iters",
                   "4", "-r", "1")  # fmt: skip
    group = farandole.default_group()
    own = [TorchLane("farandole", group), Wrong("wrong", group)]
    bench = measure.Bench(plan, own, torch.device("cpu"))
    return [row for each in measure.iterate(bench, plan, world_size) for row in each]


@pytest.mark.system
def test_every_operation_dtype_and_reduction_is_measured_and_verified() -> None:
    first, *others = ranks.run(every_case, 3, deadline_s=110)
    assert all(other == first for other in others)
    ours = [row for row in first if row["lane"] == "farandole"]
    assert {row["operation"] for row in ours} == set(OPERATIONS)
    assert {(row["dtype"], row["op"]) for row in ours} >= {
        (dtype, op) for dtype in DTYPES for op in REDUCTIONS
    }
    for row in ours:
        assert row["verified"], row
        assert row["wrong"] == 0
        assert row["iterations"] == 4
        assert row["p95_us"] >= row["time_us"] > 0
    wrong = [row for row in first if row["lane"] == "wrong"]
    # Rank 1 is the root where only a root has results.
    assert {row["wrong"] for row in wrong} == {2}  # once before and once after measuring
    assert "FAILED" in table.verdict_of(first)


@pytest.mark.system
def test_bandwidths_of_small_sizes_are_not_rounded_away() -> None:
    plan = plan_of("-b", "8", "-e", "8", "--iters", "4")
    bench = measure.Bench.__new__(measure.Bench)
    bench._plan, bench._ranks, bench._device = plan, 2, torch.device("cpu")
    (case,) = plan.cases(2)
    cell = measure.Cell(TorchLane("slow", None))
    found = bench._row(case, cell, [{"median": 3000.0, "p95": 3000.0, "wrong": 0}])
    assert found["algbw_gb_s"] == pytest.approx(8 / 3000 / 1e3, rel=1e-5)


def test_a_plot_keeps_markers_and_titles_apart(tmp_path: Path, monkeypatch: Any) -> None:
    pyplot = pytest.importorskip("matplotlib.pyplot")
    shared = {"op": "none", "dtype": "float32", "lane": "farandole", "accelerator": None,
              "cpu": "a CPU", "torch": "2.11.0", "busbw_gb_s": 1.0}  # fmt: skip
    rows = [
        {**shared, "operation": name, "ranks": count, "bytes": size, "time_us": 9.0}
        for name, counts in (("all_gather", (1, 2)), ("send_recv", (2,)))
        for count in counts
        for size in (8, 32)
    ]
    drawn = []
    monkeypatch.setattr(pyplot, "close", drawn.append)
    plot.draw(rows, tmp_path / "a.png")
    (figure,) = drawn
    first, second = figure.axes[:2]
    assert first.lines[1].get_marker() == second.lines[0].get_marker()  # those of 2 ranks
    renderer = figure.canvas.get_renderer()
    title = figure._suptitle.get_window_extent(renderer)
    assert not any(title.overlaps(each.title.get_window_extent(renderer)) for each in figure.axes)


def too_large(rank_: int, world_size: int) -> list[dict[str, Any]]:
    plan = plan_of("-b", "1G", "-e", "1G")
    from farandole.bench import memory

    memory.available_bytes = lambda: 2**30 if rank_ == 1 else 2**60
    own = [TorchLane("farandole", farandole.default_group())]
    bench = measure.Bench(plan, own, torch.device("cpu"))
    return [row for each in measure.iterate(bench, plan, world_size) for row in each]


@pytest.mark.system
def test_sizes_that_do_not_fit_into_memory_are_left_out_on_every_rank() -> None:
    first, second = ranks.run(too_large, 2)
    assert first == second
    assert first[0]["cannot"] == "it needs 8.0 GiB, and 1.0 GiB are free"
    assert "n/a: it needs" in table.line_of(first[0])


@pytest.mark.system
def test_it_starts_ranks_and_writes_table_lines_and_plots(tmp_path: Path) -> None:
    results, plot, image = (tmp_path / name for name in ("results.jsonl", "a.svg", "a.png"))
    done = bench("all_reduce", "all_gather", "-n", "1,2", "-b", "1K", "-e", "4K", "--iters", "4",
                 "--json", str(results), "--plot", str(plot), "--plot", str(image))  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in results.read_text().splitlines()]
    assert len(rows) == 2 * 2 * 2 * 2
    assert {row["ranks"] for row in rows} == {1, 2}
    assert {row["lane"] for row in rows} == {"farandole", "gloo"}
    assert all(row["verified"] and row["torch"] == torch.__version__ for row in rows)
    assert done.stdout.count("wrong elements: 0 OK") == 2
    assert "# without nccl: NCCL needs tensors on GPUs" in done.stdout
    assert "# without mpi: mpirun did not start these ranks" in done.stdout
    assert plot.read_text().startswith("<?xml")
    assert image.read_bytes().startswith(b"\x89PNG")


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_the_ranks_and_leaves_what_was_measured(
    tmp_path: Path, number: signal.Signals
) -> None:
    results = tmp_path / "results.jsonl"
    arguments = ["-n", "2", "-b", "8", "-e", "1M", "-f", "2", "--iters", "20000", "--json"]
    started = subprocess.Popen(
        [warm_python.executable(), "-m", "farandole", "bench", "collectives", "--peers", "none",
         *arguments, str(results)],
        env=run_command.environment(), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    assert started.stdout is not None
    for line in started.stdout:
        if " farandole " in line and "#" not in line:
            break
    started.send_signal(number)
    _, errors = started.communicate(timeout=DEADLINE_S)  # to the end: no rank is left
    assert started.returncode == 128 + number
    assert "Traceback" not in errors
    assert json.loads(results.read_text().splitlines()[0])["verified"]


@pytest.mark.system
def test_ranks_of_torchrun_print_lines_of_json() -> None:
    torchrun = [warm_python.executable(), "-m", "torch.distributed.run", "--standalone",
                "--nproc-per-node=2"]  # fmt: skip
    done = subprocess.run(
        [*torchrun, "-m", "farandole", "bench", "collectives", "-e", "8", "--peers", "none",
         "--iters", "4", "--json", "-"],
        env=run_command.environment(), capture_output=True, text=True, timeout=DEADLINE_S,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    (row,) = [json.loads(line) for line in done.stdout.splitlines()]
    assert (row["ranks"], row["launcher"], row["lane"]) == (2, "torchrun", "farandole")


@pytest.mark.system
def test_mpi_is_a_peer_where_mpirun_starts_the_ranks() -> None:
    pytest.importorskip("mpi4py")
    done = bench("-n", "2", "-e", "8", "--peers", "mpi", "--iters", "4", "--json", "-")
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in done.stdout.splitlines()]
    assert [row["lane"] for row in rows] == ["farandole", "mpi"]
    assert all(row["verified"] and row["launcher"] == "mpirun" for row in rows)


def test_a_wrong_result_is_status_1(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rank, "TorchLane", OffByOne)
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "1")
    monkeypatch.setenv("LOCAL_RANK", "0")
    monkeypatch.setenv("LOCAL_WORLD_SIZE", "1")
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    monkeypatch.setenv("MASTER_PORT", "0")
    assert command_line.main(["-e", "8", "--peers", "none", "--iters", "4"]) == 1


class OffByOne(TorchLane):
    """A library that changes each result."""

    def call(self, operation: Any, op: str, source: Any, target: Any, root: int) -> Any:
        return lambda: target.add_(1)


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["-b", "8X"], "bench-size"),
        (["-b", "0"], "bench-size"),
        (["-b", "8", "-e", "4"], "bench-size-order"),
        (["-f", "1"], "bench-number"),
        (["-f", "2", "-i", "8"], "bench-exclusive"),
        (["-n", "two"], "bench-number"),
        (["-n", "0"], "bench-number"),
        (["-n", "2", "-r", "2"], "bench-root"),
        (["-d", "float8"], "bench-choice"),
        (["-o", "mean"], "bench-choice"),
        (["all_reduces"], "bench-choice"),
        (["--peers", "ucc"], "bench-choice"),
        (["--plot", "results.pdf"], "bench-plot-ending"),
        (["--json", "/nowhere/results.jsonl"], "bench-file"),
        (["--json", "/dev/null"], "bench-file"),  # a verdict could not be read from there
    ],
)
def test_wrong_options_are_status_2(
    arguments: list[str], name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(arguments) == 2
    assert f"[{name}]" in capsys.readouterr().err


def test_a_gpu_that_is_not_there_is_status_2(capsys: pytest.CaptureFixture[str]) -> None:
    if torch.cuda.is_available():
        pytest.skip("there is a GPU")
    assert command_line.main(["--device", "cuda"]) == 2
    assert "[bench-no-gpu]" in capsys.readouterr().err


def test_a_plot_without_matplotlib_is_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    assert command_line.main(["--plot", "results.svg"]) == 2
    assert "[bench-plot-missing]" in capsys.readouterr().err


def test_a_launcher_with_other_ranks_than_asked_for_is_status_2(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {"RANK": "0", "WORLD_SIZE": "4", "MASTER_ADDR": "h", "MASTER_PORT": "1",
                        "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "4"}.items():  # fmt: skip
        monkeypatch.setenv(name, value)
    assert command_line.main(["-n", "20"]) == 2
    assert "-n asks for 20 ranks, and torchrun started 4." in capsys.readouterr().err


@pytest.mark.system
def test_a_peer_that_is_asked_for_and_missing_is_status_2() -> None:
    done = bench("-n", "1", "-e", "8", "--peers", "nccl")
    assert done.returncode == 2
    assert "[bench-peer]" in done.stderr


@pytest.mark.system
def test_import_farandole_imports_nothing_of_bench() -> None:
    code = "import farandole, sys; print([n for n in sys.modules if 'farandole.bench' in n])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60,
                          check=True)  # fmt: skip
    assert done.stdout == "[]\n"


@pytest.mark.parametrize("words", bench_lines("collectives"), ids=" ".join)
def test_lines_of_the_page_are_right(words: list[str], tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.chdir(tmp_path)
    place = words.index("collectives")
    plan = plan_of(*words[place + 1 :])
    assert plan.sizes
    options = command_line.make_parser().parse_args(words[place + 1 :])
    assert (options.ranks is None) == (words[0] != "farandole" or words[1] == "run")


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun", "srun"])
def test_the_page_has_launch_lines_for_1_to_8_hosts_of_8_gpus(launcher: str) -> None:
    found = {ranks_of(words) for words in launch_lines() if words[0] == launcher}
    assert found >= {(hosts, 8 * hosts) for hosts in (1, 2, 4, 8)}


def test_errors_are_ours() -> None:
    with pytest.raises(Error):
        plan_of("-b", "-1")
    assert lanes.obstacle_to("gloo", "cuda") == "gloo is for tensors on the CPU"
