# SPDX-License-Identifier: Apache-2.0
"""benchmarks/gpu runs and verifies what it measures, as far as the simulated device shows."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from farandole.bench.sizes import MIB

import warm_python
from benchmarks.gpu import bandwidth, summary
from benchmarks.gpu import run as gpu_run
from benchmarks.gpu.accelerator import ACCELERATORS

REPOSITORY = Path(__file__).parents[2]
missing = ACCELERATORS["sim"].why_missing()


@pytest.mark.system
@pytest.mark.skipif(bool(missing), reason=missing)
def test_a_quick_run_measures_and_verifies_all_lanes(tmp_path: Path) -> None:
    options = ["--device", "sim", "--quick", "--gpus", "2", "--output", str(tmp_path)]
    done = subprocess.run(
        [warm_python.executable(), "-m", "benchmarks.gpu.run", *options],
        cwd=REPOSITORY,
        env={**os.environ, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    rows = [json.loads(line) for line in (tmp_path / "gpu.jsonl").read_text().splitlines()]
    lanes: dict[str, set[str]] = {}
    for each in rows:
        name = each.get("operation") or each.get("task") or each["part"]
        lanes.setdefault(name, set()).add(each["lane"])
        assert (each["device"], each["ranks"], each["hosts"]) == ("sim", 2, 1)
        if "cannot" not in each:
            times = "quartiles_us" if "quartiles_us" in each else "quartiles_ms"
            assert 0 < each[times][0] <= each[times][1]
            assert each["rounds"] == 2
    both = {"farandole", "torch_nccl"}
    trained = both | {"local", "farandole_zero", "torch_zero"}
    collectives = dict.fromkeys(["all_reduce", "all_gather", "reduce_scatter"], both)
    assert lanes == {
        **collectives,
        "all_reduce, async_op": both,
        "resnet50": trained,
        "gpt2": trained,
        "adamw": {"farandole", "farandole_bfloat16", "torch", "copy"},
    }
    for each in rows:
        if each["part"] == "bandwidth":
            factor = {"all_reduce": 1}.get(each["operation"], 0.5)
            speed = each["bytes"] / each["median_us"] / 1e3 * factor
            assert each["busbw_gb_s"] == pytest.approx(speed, abs=2e-3)
            assert each["verified"]
    assert "simulated, 2 ranks" in done.stdout
    assert "torch, NCCL" not in done.stdout


@pytest.mark.parametrize("options", [["--publish"], ["--quick", "--publish"], []])
def test_times_of_the_simulated_device_are_never_published(
    options: list[str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["run.py", "--device", "sim", *options])
    with pytest.raises(SystemExit):
        gpu_run.parse_arguments()
    assert "--quick" in capsys.readouterr().err


class TwoRanks:
    """What verify() asks of a session, on rank 1."""

    rank, ranks, device = 1, 2, torch.device("cpu")

    def check(self, wrong: int, what: str) -> None:
        if wrong:
            raise RuntimeError(f"{what}: {wrong} wrong elements")


def test_one_wrong_element_fails_the_run() -> None:
    operation = bandwidth.OPERATIONS[0]
    given, taken = (torch.zeros(1000, dtype=bandwidth.DTYPE) for _ in range(2))

    def reduce() -> None:
        taken.add_(bandwidth.numbers(0, 1000, taken.device))

    session: Any = TwoRanks()
    bandwidth.verify(session, operation, given, taken, "ours", reduce)
    with pytest.raises(RuntimeError, match="ours: 1 wrong elements"):
        bandwidth.verify(
            session, operation, given, taken, "ours", lambda: (reduce(), taken[7].add_(1))
        )


MACHINE = {"device": "cuda", "gpu": "a GPU", "hosts": 1, "ranks": 2}
ROUNDS = {"of_peer_quartiles": [0.5, 0.7], "ratio_quartiles": [1.0, 1.1]}


def row(part: str, lane: str, **fields: Any) -> dict[str, Any]:
    return {"part": part, "lane": lane, **ROUNDS, **MACHINE, **fields}


def test_figures_say_which_targets_are_reached() -> None:
    sent = {"operation": "all_reduce", "bytes": 16 * MIB, "busbw_gb_s": 123.45}
    launch = {"operation": "all_reduce", "bytes": 4096}
    step = {"task": "gpt2"}
    rows = [
        row("bandwidth", "farandole", median_us=103.0, of_peer=1.03, **sent),
        row("bandwidth", "torch_nccl", median_us=100.0, **sent),
        row("launch", "farandole", median_us=6.0, of_peer=0.6, **launch),
        row("launch", "torch_nccl", median_us=10.0, **launch),
        row("steps", "local", median_ms=90.0, **step),
        row("steps", "farandole", median_ms=95.0, ratio=1.05, of_peer=0.95, **step),
        row("steps", "torch_nccl", median_ms=100.0, **step),
        row("steps", "farandole_zero", cannot="refused", **step),
        row("steps", "torch_zero", median_ms=120.0, **step),
        row("adamw", "farandole", median_ms=1.0, of_copy=0.8, of_peer=0.9),
        row("adamw", "torch", median_ms=1.1),
        row("adamw", "copy", median_ms=0.8),
    ]
    found = {(each.name, each.peer): each for each in summary.figures(rows)}
    bus = found["all_reduce, 16 MiB, 123.5 GB/s", "torch, NCCL"]
    assert (bus.ratio, bus.state) == (1.03, "short by 1.01x")
    assert found["host time of all_reduce", "torch, NCCL"].state == "reached"
    name = "transformer, 125 M parameters, step with DDP"
    assert found[name, "torch, NCCL"].target is None
    assert found[name, "no DDP"].target is None  # several ranks communicate
    refused = found[f"{name} and ZeRO", "torch, NCCL"]
    assert (refused.ours_us, refused.peer_us, refused.state) == (None, 120_000.0, "refused")
    copy = found["AdamW of the sharded optimizer", "a copy of as many bytes"]
    assert (copy.ratio, copy.target, copy.state) == (1.25, 1.111, "short by 1.12x")
    assert len(found) == 7

    alone = [{**each, "ranks": 1} for each in rows]
    found = {(each.name, each.peer): each for each in summary.figures(alone)}
    assert found[name, "no DDP"].state == "short by 1.04x"


def test_benchmarks_page_has_a_table_for_each_gpu() -> None:
    machine = {"torch": "2.11", "nccl": "2.28.9", "driver": "580", "commit": "abc"}
    machine["timestamp"] = "2026-01-02T03:04:05+00:00"
    step = {"task": "resnet50", **machine}
    rows = [
        row("steps", "local", median_ms=90.0, **step),
        row("steps", "farandole", median_ms=95.0, ratio=1.05, of_peer=0.95, **step),
        row("steps", "torch_nccl", median_ms=100.0, **step),
    ]
    text = summary.SECTION.text([*rows, *({**each, "gpu": "another"} for each in rows)])
    assert "NCCL 2.28.9, driver 580" in text
    assert text.count("\na GPU, 2 ranks:\n") == text.count("\nanother, 2 ranks:\n") == 1
    cells = "95.0 ms | 100 ms | torch, NCCL | 0.950x | 0.500x to 0.700x |"
    assert f"| ResNet-50, step with DDP | {cells}" in text
    assert summary.SECTION.text([]) == ""
