# SPDX-License-Identifier: Apache-2.0
"""farandole.profiler.start: what a training leaves in the files of its ranks."""

from __future__ import annotations

import gc
import gzip
import json
import os
import signal
import time
from collections import Counter
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole import profiler
from torch import nn
from torch.profiler import schedule
from torch.utils.data import DataLoader, TensorDataset

import ranks

STEPS = 4


def lines_of(folder: Path, rank: int) -> list[dict[str, Any]]:
    """Of a rank's files, which must be whole, or not yet closed."""
    found: list[dict[str, Any]] = []
    for path in sorted(folder.glob("framework/pevents/*/*")):
        text = path.read_text()
        if path.suffix == ".tmp":
            text += "]"
        lines = json.loads(text)
        if lines[0]["args"]["name"] == f"rank {rank}":
            found += lines
    return found


def names(lines: list[dict[str, Any]]) -> Counter[str]:
    return Counter(f"{line.get('cat', line['ph'])}/{line['name']}" for line in lines)


def _trains(rank: int, size: int, folder: str) -> None:
    profiler.start(folder)
    assert profiler.is_recording()
    model = farandole.DistributedDataParallel(nn.Linear(20, 20))
    optimizer = farandole.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
    loader = DataLoader(TensorDataset(torch.randn(4 * STEPS, 20)), 4)
    for (x,) in loader:
        with profiler.annotate("my forward"):
            loss = model(x).square().mean()
        handle = profiler.annotation_begin("my backward")
        loss.backward()
        profiler.annotation_end(handle)
        optimizer.step()
        optimizer.zero_grad()
    gc.collect()
    farandole.save_checkpoint(Path(folder) / "saves", model=model, optimizer=optimizer)
    farandole.load_checkpoint(Path(folder) / "saves", model=model, optimizer=optimizer)
    profiler.stop()
    assert not profiler.is_recording()
    assert gc.callbacks == []
    with profiler.annotate("afterwards"):
        pass


@pytest.mark.parametrize("backend", ["farandole", "hosts", "gloo"])
def test_a_training_is_recorded(backend: str, tmp_path: Path) -> None:
    ranks.run(_trains, 2, str(tmp_path), setup=ranks.Setup(backend=backend))
    for rank in range(2):
        lines = lines_of(tmp_path, rank)
        counts = names(lines)
        expected = ["forward/forward", "backward/backward", "optimizer/optimizer_step"]
        expected += ["step/step", "annotation/my forward", "annotation/my backward"]
        assert {name: counts[name] for name in expected} == dict.fromkeys(expected, STEPS)
        assert counts["data/dataloader"] == STEPS + 1  # the last one finds the end
        assert counts["communication/exposed_communication"] == STEPS
        assert counts["checkpoint/save"] == counts["checkpoint/load"] == 1
        assert counts["gc/gc"] >= 1
        assert counts["annotation/afterwards"] == 0
        assert (counts["collective/barrier"] > 0) == (backend != "gloo")
        second = lines[1]["args"]
        assert (second["rank"], second["world_size"], second["local_rank"]) == (
            (rank, 2, rank) if backend == "farandole" else (rank, 2, second["local_rank"])
        )
        assert second["node"] == ("algo-2" if backend == "hosts" and rank == 1 else "algo-1")
        steps = [line["args"] for line in lines if line.get("cat") == "step"]
        assert steps == [{"step": step, "mode": "TRAIN"} for step in range(STEPS)]
    profile = profiler.Profile(tmp_path)
    assert profile.problems() == []
    assert len(profile.metrics.of("CPUUtilization")) > 0
    assert [len(rank.spans("forward")) for rank in profile.timeline.ranks()] == [STEPS, STEPS]
    profiler.export_chrome_trace(tmp_path, tmp_path / "all.json")
    events = json.loads((tmp_path / "all.json").read_text())
    forwards = [event["pid"] for event in events if event.get("cat") == "forward"]
    assert forwards == [0] * STEPS + [1] * STEPS


def _compares_clocks(rank: int, size: int, folder: str) -> None:
    if rank == 0:
        profiler.start(folder)
    dist.barrier()
    if rank == 1:
        profiler.start(folder)
    dist.barrier()
    handle = profiler.annotation_begin("both")
    dist.barrier()
    profiler.annotation_end(handle)
    profiler.stop()


def test_clocks_are_compared_with_that_of_rank_0(tmp_path: Path) -> None:
    ranks.run(_compares_clocks, 2, str(tmp_path), setup=ranks.Setup(backend="hosts"))
    first, second = (lines_of(tmp_path, rank)[1]["args"] for rank in range(2))
    assert "clock_offset_us" not in first  # it is rank 0
    # Both carry on the clock of this one host.
    assert abs(second["clock_offset_us"]) <= second["clock_error_us"] + 1000
    assert 0 < second["clock_error_us"] < 20_000


def _follows(rank: int, size: int, folder: str) -> None:
    profiler.start(
        folder, schedule=schedule(wait=2, warmup=1, active=2, repeat=1), operators=rank == 0
    )
    active = []
    for step in range(7):
        active.append(profiler.is_recording())
        with profiler.annotate(f"step {step}"):
            torch.ones(3) + step
        profiler.step("EVAL" if step == 4 else "TRAIN")
    assert active == [False, False, False, True, True, False, False]
    profiler.stop()


def test_a_schedule_says_which_steps_are_recorded(tmp_path: Path) -> None:
    ranks.run(_follows, 2, str(tmp_path))
    for rank in range(2):
        lines = lines_of(tmp_path, rank)
        phases = [line["name"] for line in lines if line.get("cat") == "annotation"]
        assert [name for name in phases if name.startswith("step ")] == ["step 3", "step 4"]
        modes = [line["args"]["mode"] for line in lines if line.get("cat") == "step"]
        assert modes == ["TRAIN", "EVAL"]
    top = profiler.top_operators(tmp_path, by="count", device="cpu")
    assert ("aten::add", 2) in [(each.name, each.calls) for each in top]
    profiler.export_chrome_trace(tmp_path, tmp_path / "all.json.gz")
    events = json.loads(gzip.decompress((tmp_path / "all.json.gz").read_bytes()))
    mine = [event for event in events if event["pid"] == 0]
    spans = {event["name"]: event for event in mine if event.get("cat") == "annotation"}
    adds = [event for event in events if event["name"] == "aten::add"]
    assert len(adds) == 2
    assert {event["pid"] for event in adds} == {2}  # beside those of ranks 0 and 1
    for name, operator in zip(("step 3", "step 4"), adds, strict=True):
        # Of the same clock: within its step, but for what the two clocks of this host differ by.
        assert (
            spans[name]["ts"] - 2000
            < operator["ts"]
            < spans[name]["ts"] + spans[name]["dur"] + 2000
        )
    times = [each.self_us for each in profiler.top_operators(tmp_path, 5)]
    assert len(times) == 5
    assert times == sorted(times, reverse=True)


def test_bad_input_is_named(tmp_path: Path) -> None:
    for options in (
        {"operators": True},
        {"max_file_bytes": 0},
        {"max_file_seconds": -1.0},
    ):
        with pytest.raises(farandole.InvalidArgument, match=next(iter(options))):
            profiler.start(tmp_path, **options)  # type: ignore[arg-type]
    with pytest.raises(farandole.InvalidArgument, match="by='size'"):
        profiler.top_operators(tmp_path, by="size")
    with pytest.raises(farandole.InvalidArgument, match="found none"):
        profiler.top_operators(tmp_path)
    (tmp_path / "file").touch()
    with pytest.raises(farandole.SystemError, match="could not be made"):
        profiler.start(tmp_path / "file")
    assert not profiler.is_recording()


def _dies(rank: int, size: int, folder: str) -> None:
    profiler.start(folder)
    with profiler.annotate("before"):
        time.sleep(0.01)
    time.sleep(1)
    os.kill(os.getpid(), signal.SIGKILL)


def test_a_killed_rank_leaves_what_it_had_done(tmp_path: Path) -> None:
    ranks.run(_dies, 1, str(tmp_path), may_die=(0,))
    assert names(lines_of(tmp_path, 0))["annotation/before"] == 1


def _annotates(rank: int, size: int, folder: str) -> None:
    @profiler.annotate("factorial")
    def factorial(n: int) -> int:
        return n * factorial(n - 1) if n else 1

    @torch.compile(backend="eager", fullgraph=True)
    def compiled(x: torch.Tensor) -> torch.Tensor:
        with profiler.annotate("within a graph"):
            return x + 1

    profiler.start(folder, system_interval_ms=None)
    assert factorial(3) == 6
    with pytest.raises(ZeroDivisionError), profiler.annotate("fails"):
        raise ZeroDivisionError
    assert torch.equal(compiled(torch.ones(2)), torch.full((2,), 2.0))
    with torch.profiler.profile() as seen, profiler.annotate("for torch, too"):
        pass
    assert "for torch, too" in [event.name for event in seen.events()]
    profiler.stop()


def test_annotations_nest_fail_and_compile(tmp_path: Path) -> None:
    ranks.run(_annotates, 1, str(tmp_path))
    counts = names(lines_of(tmp_path, 0))
    assert (counts["annotation/factorial"], counts["annotation/fails"]) == (4, 1)
    assert counts["annotation/within a graph"] == 0
