# SPDX-License-Identifier: Apache-2.0
"""`farandole bench train`: models, lanes, scaling, advice, the sweep and its page."""

from __future__ import annotations

import errno
import html
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import torch
from farandole.bench import ranks as ranks_of_run
from farandole.bench.models.gpt2 import VOCABULARY, Gpt2
from farandole.bench.models.mlp import Perceptron
from farandole.bench.models.resnet import Basic, resnet
from farandole.bench.models.vit import Vit
from farandole.bench.train import command_line, scaling
from farandole.bench.train.chart import Line, chart
from farandole.bench.train.measure import Bench
from farandole.bench.train.page import page
from farandole.bench.train.plan import Cell, Plan
from farandole.bench.train.tasks import BUILT_IN, task_of, to_device

import ranks
import run_command
import warm_python
from launch_lines import bench_lines, launch_lines, ranks_of

REPOSITORY = Path(__file__).parents[2]
EXAMPLE = REPOSITORY / "examples" / "bench"
DEADLINE_S = 100


def plan_of(*arguments: str) -> Plan:
    return command_line.plan_of(command_line.make_parser().parse_args([*arguments]))


def bench(output: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Runs `farandole bench train` on the example's model, as short as can be."""
    command = [warm_python.executable(), "-m", "farandole", "bench", "train", "--output"]
    quick = ["--model", "bench_model:make", "--seconds", "0", "--rounds", "2"]
    return subprocess.run(
        [*command, str(output), *quick, *arguments],
        cwd=EXAMPLE,
        env=run_command.environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def row(lane: str, samples_per_s: float, **values: Any) -> dict[str, Any]:
    """As results.jsonl has it; the middle half is 2 % wide."""
    found = {
        "model": "resnet18",
        "precision": "float32",
        "ranks": 2,
        "global_batch": 8,
        "lane": lane,
        "device": "cpu",
        "samples_per_s": samples_per_s,
        "exposed_ms": None,
        "memory_bytes": 2**20,
        "threads": 1,
        "parameters": 10**7,
        "cpu": "a CPU",
        "cores": 2,
        "accelerator": None,
        "torch": "2.11.0",
        "farandole": "0.1.0",
        "timestamp": "2026-01-01T00:00:00+00:00",
        **values,
    }
    median_ms = found["global_batch"] / samples_per_s * 1e3
    quartiles = [0.99 * median_ms, 1.01 * median_ms]
    return {"median_ms": median_ms, "quartiles_ms": quartiles, **found}


# As published: arXiv:1512.03385 and 2010.11929, torchvision, timm, and OpenAI's GPT-2.
@pytest.mark.parametrize(
    ("name", "millions", "tensors"),
    [
        ("resnet18", 11.69, 62),
        ("resnet50", 25.56, 161),
        ("vit_s", 22.05, 152),
        ("vit_b", 86.57, 152),
        ("gpt2_small", 124.44, 148),
        ("gpt2_medium", 354.82, 292),
        ("mlp2000", 4.16, 2000),
    ],
)
def test_built_in_models_have_the_parameters_of_those_published(
    name: str, millions: float, tensors: int
) -> None:
    with torch.device("meta"):
        parameters = list(BUILT_IN[name].new_model().parameters())
    assert sum(each.numel() for each in parameters) / 1e6 == pytest.approx(millions, abs=0.01)
    assert len(parameters) == tensors


SMALL: dict[str, tuple[Callable[[], torch.nn.Module], Callable[[], torch.Tensor]]] = {
    "basic resnet": (lambda: resnet(8, [1, 2], Basic), lambda: torch.randn(2, 3, 32, 32)),
    "bottleneck resnet": (lambda: resnet(8, [2, 1]), lambda: torch.randn(2, 3, 32, 32)),
    "vit": (lambda: Vit(16, 1, 2), lambda: torch.randn(2, 3, 224, 224)),
    "gpt2": (lambda: Gpt2(8, 2, 2), lambda: torch.randint(VOCABULARY, (2, 8))),
    "perceptron": (lambda: Perceptron(8, 50), lambda: torch.randn(2, 8)),
}


@pytest.mark.parametrize("name", SMALL)
def test_each_parameter_of_the_models_is_trained(name: str) -> None:
    torch.manual_seed(0)
    new_model, new_inputs = SMALL[name]
    model = new_model()
    scores = model(new_inputs())
    classes = torch.randint(scores.shape[-1], scores.shape[:-1])
    torch.nn.functional.cross_entropy(scores.flatten(0, -2), classes.flatten()).backward()
    for parameter in model.parameters():
        assert parameter.grad is not None
        assert parameter.grad.isfinite().all()
        assert parameter.grad.abs().sum() > 0


def test_gpt2_scores_each_next_token() -> None:
    task = BUILT_IN["gpt2_small"]
    with torch.device("meta"):
        model, batch = task.new_model(), task.new_batch(2, "cuda")
        assert model(batch[0]).shape == (2, 1024, 50257)


def test_cells_are_weak_and_strong_and_those_of_one_process() -> None:
    plan = plan_of("--model", "resnet18", "--batch-size", "4", "--precision", "bf16")
    counts = [1, 2, 3]
    found = [(cell.ranks, cell.global_batch) for n in counts for cell in plan.cells(n, 3)]
    assert found == [(1, 4), (1, 12), (2, 8), (2, 12), (3, 12)]
    assert [cell.global_batch for cell in plan.single_cells(counts)] == [4, 8, 12]
    assert command_line.doubled(6) == [1, 2, 4, 6]
    cell = Cell("resnet18", "bf16", 3, 8, ())
    assert [cell.samples_of(rank) for rank in range(3)] == [3, 3, 2]
    few = plan_of("--scaling", "strong", "--global-batch-size", "2")
    assert [cell.ranks for n in (1, 2, 4) for cell in few.cells(n, 4)] == [1, 2]


def test_efficiency_is_against_as_many_times_one_rank() -> None:
    rows = [
        row("ours", 10.0, ranks=1, global_batch=4),
        row("ours", 12.0, ranks=1, global_batch=8),
        row("ours", 15.0, ranks=2, global_batch=8),
        row("single", 11.0, ranks=1, global_batch=8),
    ]
    (weak,), (strong,) = scaling.weak(rows), scaling.strong(rows)
    assert weak.efficiencies() == [(1, 1.0), (2, 0.75)]
    assert strong.efficiencies() == [(1, 1.0), (2, 0.625)]


def test_a_series_has_ranks_with_as_many_threads() -> None:
    rows = [
        row("ours", 10.0, ranks=1, global_batch=4),
        row("ours", 15.0, ranks=2, global_batch=8),
        row("ours", 18.0, ranks=1, global_batch=4, threads=2),  # of a sweep of one rank, later
    ]
    (weak,) = scaling.weak(rows)
    assert weak.efficiencies() == [(1, 1.0), (2, 0.75)]
    gpus = [{**each, "device": "cuda"} for each in rows[1:]]  # threads of a launcher do not matter
    (weak,) = scaling.weak(gpus)
    assert [ranks for ranks, _ in weak.efficiencies()] == [1, 2]


def test_it_says_which_ranks_strong_scaling_leaves_out(capsys: pytest.CaptureFixture[str]) -> None:
    command_line.print_head(plan_of("--global-batch-size", "3"), [1, 2, 4, 8])
    assert "# without strong scaling to 4, 8 ranks: a global batch of 3" in capsys.readouterr().out
    command_line.print_head(plan_of("--global-batch-size", "8"), [1, 2, 4, 8])
    assert "strong" not in capsys.readouterr().out


@pytest.mark.parametrize("line", ['{"a": 1}', "[1, 2]"])
def test_results_of_something_else_are_refused(
    line: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "results.jsonl").write_text(line + "\n")
    assert command_line.main(["--output", str(tmp_path)]) == 2
    assert "[bench-rows]" in capsys.readouterr().err
    assert (tmp_path / "results.jsonl").read_text() == line + "\n"


def test_a_disk_that_becomes_full_is_named(
    tmp_path: Path, monkeypatch: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    def write_text(path: Path, text: str) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    (tmp_path / "results.jsonl").write_text(json.dumps(row("ours", 10.0)) + "\n")
    monkeypatch.setattr(ranks_of_run, "run_ranks", lambda *_, **__: 0)
    monkeypatch.setattr(Path, "write_text", write_text)
    assert command_line.main(["-n", "1", "--output", str(tmp_path)]) == 1
    said = capsys.readouterr().err
    assert f"No space left on device: {tmp_path / 'report.html'}." in said
    assert "[bench-file]" in said


class Pair(NamedTuple):
    """A batch with names."""

    images: torch.Tensor
    labels: torch.Tensor


def test_batches_keep_their_types_on_the_way_to_the_device() -> None:
    batch = {"pair": Pair(torch.ones(1), torch.zeros(1)), "list": [torch.ones(2)], "text": "a"}
    moved = to_device(batch, torch.device("cpu"))
    assert moved["pair"].labels.tolist() == [0.0]
    assert isinstance(moved["list"], list)
    assert moved["text"] == "a"


def one_process(samples_per_s: float, **values: Any) -> dict[str, Any]:
    return row("single", samples_per_s, ranks=1, **values)


def test_it_says_when_ranks_are_the_better_choice() -> None:
    (line,) = scaling.advice([row("ours", 20.0), row("zero", 22.0), one_process(11.0)])
    assert line == (
        "resnet18 float32, global batch 8: 2 ranks are the better choice: 22 samples/s on 2 ranks "
        "(Farandole with ZeRO-1), 11 in one process with all cores, 2.00x."
    )


def test_it_says_when_one_process_is_the_better_choice_because_of_communication() -> None:
    (line,) = scaling.advice(
        [row("ours", 8.0, exposed_ms=250.0), row("limit", 12.0), one_process(10.0)]
    )
    assert "one process is the better choice: 8 samples/s on 2 ranks" in line
    assert "10 in one process with all cores, 0.80x. Why: ranks that never communicate" in line
    assert (
        "reach 12 samples/s, so communication costs the difference: 250 ms of its 1,000 ms" in line
    )
    assert "25%" in line


def test_numbers_have_no_exponents() -> None:
    rows = [row("ours", 54_012.3), row("limit", 999.7), one_process(1234.5)]
    (line,) = scaling.advice(rows)
    assert "54,012 samples/s on 2 ranks (Farandole), 1,234 in one process" in line
    for parameters, text in ((41_000, "41,000 parameters"), (11_689_512, "11,689,512 parameters")):
        assert text in page([{**each, "parameters": parameters} for each in rows])


def test_the_terminal_says_what_lanes_are(capsys: pytest.CaptureFixture[str]) -> None:
    command_line.print_head(plan_of(), [1, 2])
    assert "; torch: torch's DDP over Farandole; " in capsys.readouterr().out


def test_it_says_when_no_communication_could_be_fast_enough() -> None:
    (line,) = scaling.advice([row("ours", 8.0), row("limit", 9.0), one_process(10.0)])
    assert "Why: even ranks that never communicate reach 9 samples/s: dividing the batch" in line


def test_one_process_with_the_threads_of_a_rank_may_be_the_better_one() -> None:
    alone = row("limit", 30.0, ranks=1)
    (line,) = scaling.advice([row("ours", 8.0), row("limit", 9.0), one_process(10.0), alone])
    assert "30 in one process with 1 thread, 0.27x. Why: even ranks that never" in line
    gpus = [{**each, "device": "cuda"} for each in (row("ours", 8.0), row("limit", 40.0), alone)]
    (line,) = scaling.advice(gpus)
    assert "30 in one process with one GPU, 0.27x. Why: ranks that never communicate reach" in line


def test_it_says_nothing_about_what_noise_hides() -> None:
    (line,) = scaling.advice([row("ours", 10.0), one_process(10.1)])
    assert "no difference beyond noise" in line


def test_a_chart_places_points_by_ranks_and_value() -> None:
    text = chart("a < b", "samples/s", [Line("ours", [(1, 0.0), (2, 10.0)])])
    assert "a &lt; b" in text
    assert re.findall(r'cx="([\d.]+)" cy="([\d.]+)"', text) == [
        ("66.0", "204.0"),
        ("334.0", "26.0"),
    ]


def measured(rank: int, world_size: int, *precisions: str) -> list[dict[str, Any]]:
    sys.path.insert(0, str(EXAMPLE))
    plan = plan_of("--model", "bench_model:make", "--seconds", "0", "--rounds", "1")
    bench = Bench(plan, torch.device("cpu"))
    lanes = ("ours", "zero", "torch", "limit")
    cells = [Cell("bench_model:make", each, world_size, 5, lanes) for each in precisions]
    return [row for cell in cells for row in bench.measure(cell)]


@pytest.mark.system
@pytest.mark.timeout(240)
def test_all_lanes_train_the_same_in_each_precision() -> None:
    first, second = ranks.run(measured, 2, "float32", "bf16", "fp16", deadline_s=200)
    assert first == second
    assert [row["lane"] for row in first] == 3 * ["ours", "zero", "torch", "limit"]
    for row in first:
        assert row["verified"], row
        assert row["samples_per_s"] > 0
        assert row["memory_bytes"] >= 0
        assert row["parameters"] == 64 * 256 + 256 + 256 * 10 + 10
        assert (row["exposed_ms"] is not None) == (row["lane"] in {"ours", "zero"})


def diverged(rank: int, world_size: int) -> list[str | None]:
    """A lane whose ranks do not communicate, under the name of one whose ranks do."""
    from farandole.bench.train import lanes

    wrap = lanes._wrap
    lanes._wrap = lambda lane, model, device: wrap(
        "limit" if lane == "torch" else lane, model, device
    )
    return [row["fault"] for row in measured(rank, world_size, "float32")]


@pytest.mark.system
def test_a_lane_whose_ranks_diverge_is_found() -> None:
    faults, _ = ranks.run(diverged, 2)
    assert faults == [None, None, "ranks have different parameters", None]


@pytest.mark.system
@pytest.mark.timeout(240)
def test_a_sweep_goes_on_where_it_was_ended_and_writes_one_page(tmp_path: Path) -> None:
    results = tmp_path / "results.jsonl"
    done = bench(tmp_path, "-n", "1,2", "--scaling", "weak")
    assert done.returncode == 0, done.stdout + done.stderr
    lines = results.read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    found = {(row["ranks"], row["global_batch"], row["lane"]) for row in rows}
    lanes = ("ours", "zero", "torch", "limit")
    cells = [(1, 8), (2, 16)]
    assert found == {(*cell, lane) for cell in cells for lane in lanes} | {
        (1, 8, "single"), (1, 16, "single"),
    }  # fmt: skip
    assert len(rows) == len(found)
    (verdict,) = [line for line in done.stdout.splitlines() if "global batch 16: " in line]
    text = (tmp_path / "report.html").read_text()
    assert html.escape(verdict.removeprefix("# ")) in text
    results.write_text("\n".join(lines[:-1]) + '\n{"cut off by a ki')
    again = bench(tmp_path, "-n", "1,2", "--scaling", "weak")
    assert again.returncode == 0, again.stdout + again.stderr
    _, *measured_again = [line for line in again.stdout.splitlines() if line[0] != "#"]
    assert len(measured_again) == 1
    assert " single " in measured_again[0]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [
        (["--model", "resnet19"], "bench-model"),
        (["--model", "nowhere:make"], "bench-model"),
        (["--model", "json:dumps_"], "bench-model"),
        (["--model", "../models:make"], "bench-model"),
        (["--model", "time:time"], "bench-model"),
        (["--precision", "float8"], "bench-choice"),
        (["--lanes", "gloo"], "bench-choice"),
        (["--scaling", "medium"], "bench-choice"),
        (["--batch-size", "0"], "bench-number"),
        (["-n", "0"], "bench-number"),
        (["--output", "/proc/nowhere"], "bench-folder"),
    ],
)
def test_wrong_options_are_status_2(
    arguments: list[str],
    name: str,
    capsys: pytest.CaptureFixture[str],
    tmp_path: Path,
    monkeypatch: Any,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert command_line.main(arguments) == 2
    assert f"[{name}]" in capsys.readouterr().err


@pytest.mark.parametrize("words", bench_lines("train"), ids=" ".join)
def test_lines_of_the_page_are_right(words: list[str], monkeypatch: Any) -> None:
    monkeypatch.chdir(EXAMPLE)
    arguments = words[words.index("train") + 1 :]
    assert plan_of(*arguments).tasks
    if words[0] != "farandole" and ranks_of(words)[0] > 1:
        assert "--global-batch-size" in arguments


@pytest.mark.parametrize("launcher", ["torchrun", "mpirun", "srun"])
def test_the_page_has_launch_lines_for_1_to_8_hosts_of_8_gpus(launcher: str) -> None:
    lines = [words for words in launch_lines() if "train" in words]
    found = {ranks_of(words) for words in lines if words[0] == launcher}
    assert found == {(hosts, 8 * hosts) for hosts in (1, 2, 4, 8)}


def page_of_many_rows() -> str:
    rows = []
    for precision in ("float32", "bf16"):
        for count in (1, 2, 4, 8):
            for lane in ("ours", "zero", "torch", "limit"):
                for batch in {4 * count, 32}:
                    exposed = 12.5 if lane == "ours" else None
                    rows.append(row(lane, 3000.0 * count, ranks=count, global_batch=batch,
                                    precision=precision, exposed_ms=exposed))  # fmt: skip
            rows.append(one_process(1000.0, global_batch=4 * count, precision=precision))
    return page(rows)


def test_the_page_needs_nothing_else() -> None:
    text = page_of_many_rows()
    assert not re.search(r"(src|href)=|https?://|@import|url\(", text)
    assert '<meta name="viewport" content="width=device-width' in text
    data = re.search(r'<script type="application/json" id="rows">(.*?)</script>', text)
    assert data is not None
    assert len(json.loads(data[1])) == text.count("<tr><td>")


PHONE_PIXELS = 360


@pytest.mark.system
def test_the_page_is_readable_on_a_phone_in_chromium(tmp_path: Path) -> None:
    chromium = shutil.which("chromium") or shutil.which("chromium-browser")
    if chromium is None:
        pytest.skip("chromium is not installed: apt-get install chromium")
    # A window of Chromium has a smallest width, a frame has none.
    probe = f"""<!DOCTYPE html><iframe id="phone" style="border:0" width="{PHONE_PIXELS}"
      height="800" srcdoc="{html.escape(page_of_many_rows())}"></iframe><script>
      phone.onload = () => {{
        const page = phone.contentDocument, body = page.body;
        const charts = [...page.querySelectorAll("svg")];
        const texts = [...page.querySelectorAll("svg text")];
        const found = {{
          width: page.documentElement.scrollWidth, charts: charts.length,
          narrowest: Math.min(...charts.map(each => each.getBoundingClientRect().width)),
          shortest: Math.min(...charts.map(each => each.getBoundingClientRect().height)),
          smallest: Math.min(...texts.map(each => each.getBoundingClientRect().height)),
          outside: texts.filter(each => each.getBoundingClientRect().right > {PHONE_PIXELS}
            || each.getBoundingClientRect().left < 0).map(each => each.textContent),
          font: parseFloat(phone.contentWindow.getComputedStyle(body).fontSize),
          lines: page.querySelectorAll("polyline").length,
        }};
        const out = document.createElement("pre");
        out.id = "found"; out.textContent = JSON.stringify(found); document.body.append(out);
      }};</script>"""
    file = tmp_path / "probe.html"
    file.write_text(probe)
    command = [chromium, "--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage",
               f"--user-data-dir={tmp_path / 'profile'}", "--virtual-time-budget=5000",
               "--dump-dom", file.as_uri()]  # fmt: skip
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True)
    dumped = re.search(r'<pre id="found">(.*?)</pre>', done.stdout)
    assert dumped is not None, done.stdout[-2000:] + done.stderr[-2000:]
    found = json.loads(html.unescape(dumped[1]))
    assert found["width"] <= PHONE_PIXELS  # nothing to scroll sideways
    assert found["charts"] == 2 * 6
    assert found["narrowest"] > 0.8 * PHONE_PIXELS
    assert found["shortest"] > 150
    assert found["smallest"] > 9
    assert found["outside"] == []
    assert found["font"] >= 16
    assert found["lines"] >= found["charts"]


def test_a_model_of_the_user_is_found_from_the_current_folder(monkeypatch: Any) -> None:
    monkeypatch.chdir(EXAMPLE)
    task = task_of("bench_model:make")
    assert len(task.new_batch(3, "cpu")[0]) == 3


def test_one_rank_for_each_core_by_default() -> None:
    assert ranks_of_run.default_count("cpu") >= 1
