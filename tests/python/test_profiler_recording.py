# SPDX-License-Identifier: Apache-2.0
"""farandole.profiler.start: what a training leaves in the files of its ranks."""

from __future__ import annotations

import gc
import gzip
import itertools
import json
import multiprocessing
import os
import signal
import threading
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


def _loads(rank: int, size: int, folder: str) -> None:
    profiler.start(folder)
    data = TensorDataset(torch.ones(3, 1))
    for workers in (0, 2):
        for _ in DataLoader(data, 3, num_workers=workers, multiprocessing_context=_FORK[workers]):
            pass
    for _ in itertools.chain(DataLoader(data, 3)):  # by way of something else
        pass
    with profiler.annotate("enumerate(DataLoader)#of something else"):
        pass
    profiler.stop()


_FORK = {0: None, 2: "fork"}


def test_waits_for_batches_know_how_many_workers_load(tmp_path: Path) -> None:
    ranks.run(_loads, 1, str(tmp_path))
    waits = [line["args"] for line in lines_of(tmp_path, 0) if line.get("cat") == "data"]
    assert [each.get("num_workers") for each in waits] == [0, 0, 2, 2, 0, 0, None]


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


def _starts_again(rank: int, size: int, folder: str) -> None:
    profiler.start(folder, system_interval_ms=None)
    profiler.start(f"{folder}/../{Path(folder).name}")
    with pytest.raises(farandole.InvalidArgument, match=r"\[profile-second-folder\]"):
        profiler.start(f"{folder}/other")
    assert profiler.is_recording()
    profiler.stop()
    profiler.start(f"{folder}/other", system_interval_ms=None)
    profiler.stop()


def test_another_folder_while_it_records_is_an_error(tmp_path: Path) -> None:
    ranks.run(_starts_again, 1, str(tmp_path))


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


def _is_annotated_by_two_threads(rank: int, size: int, folder: str) -> None:
    first_is_within, first_may_end = threading.Event(), threading.Event()

    @profiler.annotate("shared")
    def work(is_first: bool) -> None:
        if is_first:
            first_is_within.set()
            first_may_end.wait(30)

    profiler.start(folder, system_interval_ms=None)
    first = threading.Thread(target=work, args=(True,))
    first.start()
    first_is_within.wait(30)
    with profiler.annotate("around"):
        work(False)
    first_may_end.set()
    first.join()
    profiler.stop()


def test_threads_share_a_decorator(tmp_path: Path) -> None:
    ranks.run(_is_annotated_by_two_threads, 1, str(tmp_path))
    lines = [line for line in lines_of(tmp_path, 0) if line.get("cat") == "annotation"]
    around = next(line for line in lines if line["name"] == "around")
    (own,) = (line for line in lines if line["name"] == "shared" and line["tid"] == around["tid"])
    assert around["ts"] <= own["ts"]
    assert own["ts"] + own["dur"] <= around["ts"] + around["dur"]


def _trains_in_windows(rank: int, size: int, folder: str) -> None:
    model = nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters())
    few = schedule(wait=1, warmup=0, active=2, repeat=2)
    profiler.start(folder, schedule=few, system_interval_ms=None)
    for _ in range(7):
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
        profiler.step()
    profiler.stop()


def test_steps_of_all_windows_of_a_schedule_are_counted(tmp_path: Path) -> None:
    ranks.run(_trains_in_windows, 1, str(tmp_path))
    steps = [line["args"] for line in lines_of(tmp_path, 0) if line.get("cat") == "step"]
    assert steps == [{"step": step, "mode": "TRAIN"} for step in (1, 2, 4, 5)]


def _forks_a_child(rank: int, size: int, folder: str) -> None:
    profiler.start(folder, system_interval_ms=None)

    def child() -> None:
        profiler.step()
        os._exit(profiler.is_recording())

    process = multiprocessing.get_context("fork").Process(target=child)
    process.start()
    process.join(30)
    assert process.exitcode == 0
    profiler.stop()


def test_a_step_of_a_forked_child_is_not_recorded(tmp_path: Path) -> None:
    ranks.run(_forks_a_child, 1, str(tmp_path))
    assert len(list(tmp_path.glob("framework/pevents/*/*"))) == 1


def _loses_its_folder(rank: int, size: int, folder: str) -> None:
    few = schedule(wait=1, warmup=0, active=1)
    profiler.start(folder, schedule=few, operators=True, system_interval_ms=None)
    Path(folder).touch()  # a file
    for _ in range(4):
        profiler.step()
    assert not profiler.is_recording()
    profiler.stop()


def test_a_window_that_cannot_be_written_does_not_end_a_training(tmp_path: Path) -> None:
    ranks.run(_loses_its_folder, 1, str(tmp_path / "output"))


def _starts_in_vain(rank: int, size: int, folder: str) -> None:
    (Path(folder) / "stop" / "folder").mkdir(parents=True)  # not the file of StopTraining
    with pytest.raises(OSError, match="stop"):
        profiler.start(folder)
    assert not profiler.is_recording()
    assert gc.callbacks == []


def test_a_start_that_fails_leaves_nothing_running(tmp_path: Path) -> None:
    ranks.run(_starts_in_vain, 1, str(tmp_path))


def test_damaged_and_foreign_files_of_operators_are_left_out(tmp_path: Path) -> None:
    folder = tmp_path / "framework" / "torch"
    folder.mkdir(parents=True)
    row = {"name": "add", "device": "cpu", "count": 2, "self_us": 1.0, "total_us": 2.0}
    (folder / "0_1_operators.json").write_text(json.dumps([row, {"name": "sub"}, 3]))
    (folder / "1_1_operators.json").write_text(json.dumps([row])[:30])
    (folder / "2_1_operators.json").write_text("{}")
    event = {"name": "add", "ph": "X", "ts": 1.0, "dur": 1.0}
    (folder / "0_1_trace.json").write_text(json.dumps({"traceEvents": [event, 3]}))
    (folder / "1_1_trace.json").write_text(json.dumps({"traceEvents": [event]})[:30])
    (folder / "other_trace.json").write_text("{}")
    assert profiler.top_operators(tmp_path) == [profiler.Operator("add", "cpu", 2, 1.0, 2.0)]
    profiler.export_chrome_trace(tmp_path, tmp_path / "all.json")
    events = json.loads((tmp_path / "all.json").read_text())
    assert [event["name"] for event in events if event["ph"] == "X"] == ["add"]
