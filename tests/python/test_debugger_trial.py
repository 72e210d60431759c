# SPDX-License-Identifier: Apache-2.0
"""Trials are read while they are written, after a death, and where files are damaged."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import random
import signal
import subprocess
import threading
import time
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
from farandole.debugger import (
    Collection,
    Hook,
    ModeKeys,
    NoMoreData,
    StepNotYetAvailable,
    StepState,
    StepUnavailable,
    TensorUnavailable,
    TensorUnavailableForStep,
    create_trial,
    raw_file,
    record_file,
)
from torch import nn

import ranks
import warm_python
from debugger_training import ELEMENTS, EVERY_STEP, Net, batches, seeded, train

LOSS = "CrossEntropyLoss_output_0"


def open_hook(path: Path, **options: object) -> tuple[Hook, nn.Module]:
    hook = Hook(path, **{"save_config": EVERY_STEP, "include_regex": "Net_output", **options})
    model = seeded(Net)
    hook.register_module(model)
    return hook, model


def steps_of(hook: Hook, model: nn.Module, count: int) -> None:
    for x, _ in batches(count):
        model(x)


def test_a_trial_grows_with_the_training(tmp_path: Path) -> None:
    hook, model = open_hook(tmp_path)
    steps_of(hook, model, 2)
    trial = create_trial(tmp_path, name="mine")
    assert (trial.name, trial.loaded_all_steps) == ("mine", False)
    assert trial.steps() == [0]  # more may come of step 1
    assert trial.steps(show_incomplete_steps=True) == [0, 1]
    states = [trial.has_passed_step(step) for step in (0, 1, 2)]
    assert states == [StepState.AVAILABLE, *[StepState.NOT_YET_AVAILABLE] * 2]
    tensor = trial.tensor("Net_output_0")
    with pytest.raises(StepNotYetAvailable) as early:
        tensor.reduction_value(5, "mean")
    assert (early.value.step, early.value.mode) == (5, ModeKeys.GLOBAL)
    with trial.no_refresh():
        steps_of(hook, model, 1)
        assert trial.steps() == [0]
    assert trial.steps() == [0, 1]
    hook.close()
    assert trial.steps() == [0, 1, 2]
    assert trial.loaded_all_steps
    with pytest.raises(NoMoreData, match="last saved step is 2"):
        tensor.reduction_value(5, "mean")


def test_waiting_for_a_step_that_comes(tmp_path: Path) -> None:
    hook, model = open_hook(tmp_path)
    steps_of(hook, model, 1)
    trial = create_trial(tmp_path)
    timer = threading.Timer(0.3, steps_of, (hook, model, 2))
    timer.start()
    trial.wait_for_steps([0, 1])
    timer.join()
    assert trial.steps() == [0, 1]
    hook.close()
    with pytest.raises(NoMoreData):
        trial.wait_for_steps([3])


def test_what_was_not_saved_is_told(tmp_path: Path) -> None:
    with pytest.raises(farandole.InvalidArgument, match="no such folder"):
        create_trial(tmp_path / "none")
    trial = train(tmp_path / "a", seeded(Net), batches(3), include_collections=["weights"])
    with pytest.raises(TensorUnavailable, match="has no tensor 'x'"):
        trial.tensor("x")
    with pytest.raises(StepUnavailable):
        trial_every_second(tmp_path / "b").wait_for_steps([1])
    weight = trial.tensor("Net_first.weight")
    with pytest.raises(TensorUnavailableForStep, match="save_raw_tensor=True"):
        weight.value(1)
    with pytest.raises(TensorUnavailableForStep, match="neither prod"):
        weight.reduction_value(1, "prod")
    with pytest.raises(farandole.InvalidArgument, match="reduction 'median'"):
        weight.reduction_value(1, "median")
    with pytest.raises(farandole.InvalidArgument, match="got a regex and a collection"):
        trial.tensor_names(regex="x", collection="weights")
    with pytest.raises(farandole.InvalidArgument, match="no collection 'y'"):
        trial.tensor_names(collection="y")
    mode: Any = "TRAIN"
    for ask in (
        lambda: trial.steps(mode=mode),
        lambda: trial.tensor_names(mode=mode),
        lambda: trial.wait_for_steps([1], mode),
        lambda: weight.steps(mode),
        lambda: weight.value(1, mode=mode),
    ):
        with pytest.raises(farandole.InvalidArgument, match="a member of ModeKeys"):
            ask()


def trial_every_second(path: Path) -> farandole.debugger.Trial:
    return train(path, seeded(Net), batches(4), save_config=farandole.debugger.SaveConfig(None, 2))


def test_a_tensor_that_only_some_steps_have(tmp_path: Path) -> None:
    hook, model = open_hook(tmp_path)
    for step in range(4):
        steps_of(hook, model, 1)
        if step % 2:
            hook.save_tensor("mine", torch.full((2,), float(step)), ["a", "b"])
    hook.close()
    trial = create_trial(tmp_path)
    tensor = trial.tensor("mine")
    assert tensor.steps() == [1, 3]
    assert {step: value.tolist() for step, value in tensor.values().items()} == {
        1: [1.0, 1.0],
        3: [3.0, 3.0],
    }
    assert (tensor.prev_steps(3), tensor.prev_steps(2), tensor.prev_steps(9, 1)) == (
        [1, 3],
        [1],
        [3],
    )
    assert trial.tensor_names(collection="b") == ["mine"]
    assert trial.tensor_names(step=2) == ["Net_output_0"]
    with pytest.raises(TensorUnavailableForStep, match="was not saved then"):
        tensor.value(2)
    assert list(trial.tensors) == ["Net_output_0", "mine"]
    assert create_trial(tmp_path, range_steps=(1, 3)).steps() == [1, 2]
    assert create_trial(tmp_path, range_steps=(None, 2)).steps() == [0, 1]


def test_files_rotate_and_a_trial_goes_on_reading(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(record_file, "ROTATION_BYTES", 3000)
    hook, model = open_hook(tmp_path)
    steps_of(hook, model, 1)
    trial = create_trial(tmp_path)
    steps_of(hook, model, 30)
    assert trial.steps() == list(range(30))
    hook.close()
    files = sorted((tmp_path / "tensors").glob("*.jsonl"))
    assert len(files) > 2
    assert all(path.stat().st_size <= 3000 for path in files)
    assert create_trial(tmp_path).steps() == list(range(31))
    assert trial.steps() == list(range(31))


def test_a_training_goes_on_after_the_last_step_in_the_files(tmp_path: Path) -> None:
    train(tmp_path, seeded(Net), batches(3))
    trial = train(tmp_path, seeded(Net), batches(2))
    assert trial.steps() == [0, 1, 2, 3, 4]
    assert trial.collection("losses").has(LOSS)


def test_a_training_goes_on_with_fewer_workers(tmp_path: Path) -> None:
    """What ended before has no part in whether a step is complete."""
    for worker in ("worker_0", "worker_1"):
        record_file.RecordWriter(tmp_path / "tensors", worker, 2).close()
    hook, model = open_hook(tmp_path)
    steps_of(hook, model, 2)
    trial = create_trial(tmp_path)
    assert trial.workers() == ["worker_0", "worker_1"]
    assert trial.steps() == [0]
    hook.close()
    assert trial.steps() == [0, 1]
    assert trial.loaded_all_steps


def test_a_step_is_not_complete_before_all_workers_have_begun(tmp_path: Path) -> None:
    first = record_file.RecordWriter(tmp_path / "tensors", "worker_0", 2)
    tensors = {"x": {"dtype": "float32", "shape": [], "value": 1.0}}
    for step in range(2):
        first.write({"mode": "TRAIN", "step": step, "global": step, "time": 0, "tensors": tensors})
    trial = create_trial(tmp_path)
    assert trial.steps() == []
    assert trial.has_passed_step(0) == StepState.NOT_YET_AVAILABLE
    second = record_file.RecordWriter(tmp_path / "tensors", "worker_1", 2)
    assert trial.steps() == []
    second.write({"mode": "TRAIN", "step": 1, "global": 1, "time": 0, "tensors": tensors})
    assert trial.steps(ModeKeys.TRAIN) == [0]
    assert trial.tensor("x").workers(0) == ["worker_0"]
    first.close()
    assert not trial.loaded_all_steps
    second.close()
    assert trial.steps() == [0, 1]


def test_a_training_goes_on_where_its_checkpoint_was(tmp_path: Path) -> None:
    hook, model = open_hook(tmp_path, reduction_config=ELEMENTS)
    steps_of(hook, model, 2)
    state = json.loads(json.dumps(hook.state_dict()))
    steps_of(hook, model, 3)
    hook.close()
    before = create_trial(tmp_path).tensor("Net_output_0").value(2)
    again, model = open_hook(tmp_path, reduction_config=ELEMENTS)
    with torch.no_grad():
        model.second.bias += 1.0
    again.load_state_dict(state)
    steps_of(again, model, 1)
    again.close()
    trial = create_trial(tmp_path)
    assert trial.steps() == [0, 1, 2, 3, 4]
    now = trial.tensor("Net_output_0").value(2)  # of the training that went on
    assert before.shape == now.shape
    assert (now != before).all()


ENDLESS = """
import itertools, sys, time, torch
from torch import nn
import farandole.debugger as debugger
hook = debugger.Hook(
    sys.argv[1], save_config=debugger.SaveConfig(save_interval=1), include_collections=["weights"]
)
model = nn.Linear(4, 4)
hook.register_module(model)
for step in itertools.count():
    model(torch.ones(1, 4))
    print(step, flush=True)
    time.sleep(0.005)
"""


@pytest.mark.system
def test_a_killed_training_loses_nothing_that_was_saved(tmp_path: Path) -> None:
    script = tmp_path / "endless.py"
    script.write_text(ENDLESS)
    command = [warm_python.executable(), str(script), str(tmp_path / "out")]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout
        for line in process.stdout:
            if int(line) == 20:
                break
        trial = create_trial(tmp_path / "out")
        assert not trial.loaded_all_steps
        pid = writer_of(tmp_path / "out")
        os.kill(pid, signal.SIGKILL)
        told = [int(line) for line in process.stdout]
    deadline = time.monotonic() + 10
    while not trial.loaded_all_steps:  # seen without a word of the training
        trial.refresh()
        assert time.monotonic() < deadline
        time.sleep(0.05)
    steps = trial.steps()
    assert steps == list(range(len(steps)))
    assert len(steps) > max([20, *told])
    assert trial.damaged_lines == 0
    with pytest.raises(NoMoreData):
        trial.wait_for_steps([10**6])


def writer_of(path: Path) -> int:
    """The process that has a file of a trial open."""
    for folder in Path("/proc").glob("[0-9]*/fd"):
        try:
            for descriptor in folder.iterdir():
                if str(path / "tensors") in str(descriptor.readlink()):
                    return int(folder.parent.name)
        except OSError:
            continue
    raise AssertionError("nobody writes")


@pytest.mark.parametrize(
    "damage", ["cut", "bits", "no object", "empty file", "header", "binary", "fields"]
)
def test_damaged_lines_are_skipped_and_counted(tmp_path: Path, damage: str) -> None:
    train(tmp_path, seeded(Net), batches(4), include_collections=["weights"])
    (path,) = (tmp_path / "tensors").glob("*.jsonl")
    lines = path.read_bytes().splitlines(keepends=True)
    place = next(i for i, line in enumerate(lines) if b'"global":2' in line)
    if damage == "cut":
        path.write_bytes(b"".join(lines[:place]) + lines[place][:50])
    elif damage == "bits":
        lines[place] = lines[place][:20] + b"\xff\x00" + lines[place][22:]
    elif damage == "no object":
        lines[place] = b"[1, 2]\n"
    elif damage == "empty file":
        (tmp_path / "tensors" / "worker_0.0001.jsonl").touch()
    elif damage == "header":
        lines[0] = b"{\n"
    elif damage == "binary":
        (tmp_path / "tensors" / "worker_0.0001.jsonl").write_bytes(bytes(range(256)) * 9)
    elif damage == "fields":
        lines[place] = b'{"mode":"NONE","step":2,"global":"x","tensors":3}\n'
    if damage != "cut":
        path.write_bytes(b"".join(lines))
    trial = create_trial(tmp_path)
    assert (trial.damaged_lines > 0) == (damage != "empty file")
    assert trial.tensor("Net_first.weight").steps()[:2] == [0, 1]
    assert trial.tensor(LOSS).steps(show_incomplete_steps=True)[:2] == [0, 1]
    hook = Hook(tmp_path)  # a training goes on there
    assert hook.step >= 1
    hook.close()


def test_a_lost_or_damaged_file_of_elements_is_named(tmp_path: Path) -> None:
    trial = train(
        tmp_path,
        seeded(Net),
        batches(3),
        include_collections=["weights"],
        reduction_config=ELEMENTS,
    )
    files = sorted((tmp_path / "tensors").glob("*.safetensors"))
    files[0].unlink()
    files[1].write_bytes(files[1].read_bytes()[:-1])
    files[2].write_bytes(b"\xff" * 100)
    for step in range(3):
        with pytest.raises(TensorUnavailableForStep, match="cannot be read"):
            trial.tensor("Net_second.weight").value(step)
        with pytest.raises(TensorUnavailableForStep, match="cannot be read"):
            trial.tensor("Net_second.weight").reduction_value(step, "mean")
    with pytest.raises(TensorUnavailableForStep, match="cannot be read"):
        trial.tensor("Net_second.weight").reduction_value(0, "l2", abs=True)
    assert trial.tensor(LOSS).value(1) > 0


def test_files_of_elements_are_safetensors(tmp_path: Path) -> None:
    load_file = pytest.importorskip("safetensors.torch").load_file
    hook = Hook(tmp_path, save_config=EVERY_STEP)
    tensor = torch.arange(6, dtype=torch.bfloat16).view(2, 3)
    hook.save_tensor("x", tensor)
    hook.close()
    (path,) = (tmp_path / "tensors").glob("*.safetensors")
    loaded = load_file(path)
    assert loaded["x"].dtype == torch.bfloat16
    assert torch.equal(loaded["x"], tensor)


def test_a_full_disk_ends_what_is_saved_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    hook, model = open_hook(tmp_path)
    steps_of(hook, model, 2)
    write = os.write
    monkeypatch.setattr(os, "write", lambda file, data: write(file, data[:9]))
    with caplog.at_level("ERROR", logger="farandole"):
        steps_of(hook, model, 3)
    monkeypatch.undo()
    hook.close()
    assert len(caplog.records) == 1
    assert f"saves nothing more into '{tmp_path / 'tensors'}': [Errno 28]" in caplog.text
    trial = create_trial(tmp_path)
    assert trial.tensor("Net_output_0").steps(show_incomplete_steps=True) == [0, 1]


def test_a_forked_child_does_not_end_the_files(tmp_path: Path) -> None:
    hook, model = open_hook(tmp_path)
    steps_of(hook, model, 1)
    child = os.fork()
    if child == 0:
        hook.close()
        os._exit(0)
    os.waitpid(child, 0)
    trial = create_trial(tmp_path)
    assert not trial.loaded_all_steps
    steps_of(hook, model, 1)
    assert trial.steps() == [0]
    hook.close()


ODD = [[], [1], {}, {"a": 1}, None, "", "x", 1.5, 1e308, 10**400, "\ud800", ["["], [["a"]], "a/b"]


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_values_of_lines_may_be_anything(tmp_path: Path, odd: Any) -> None:
    hook, model = open_hook(tmp_path, reduction_config=ELEMENTS)
    steps_of(hook, model, 3)
    hook.close()
    (path,) = (tmp_path / "tensors").glob("*.jsonl")
    lines = path.read_text().splitlines()
    path.with_name("worker_1.0000.jsonl").mkdir()
    path.with_name("worker_2.x.jsonl").write_text("[" * 100_000 + "\n")
    rng = random.Random(0)
    for _ in range(20):
        records = [json.loads(line) for line in lines]
        for _ in range(4):
            place = rng.choice(records)
            while True:
                key = rng.choice(sorted(place) if isinstance(place, dict) else range(len(place)))
                if rng.random() < 0.4 or not (isinstance(place[key], (dict, list)) and place[key]):
                    break
                place = place[key]
            place[key] = copy.deepcopy(odd)
            records = [each for each in records if isinstance(each, dict) and each]
        path.write_text("\n".join(map(json.dumps, records)) + "\n")
        trial = create_trial(tmp_path)
        for step in trial.steps():
            for name in trial.tensor_names(step=step):
                tensor = trial.tensor(name)
                assert tensor.workers(step)
                tensor.reduction_values(step)
                with contextlib.suppress(TensorUnavailableForStep):
                    tensor.counts(step)
                with contextlib.suppress(TensorUnavailableForStep):
                    tensor.value(step)


@pytest.mark.parametrize("dtype", [torch.complex128, torch.uint16, torch.uint32, torch.uint64])
def test_elements_of_dtypes_that_only_cpp_wrote_are_read(
    dtype: torch.dtype, tmp_path: Path
) -> None:
    tensor = torch.tensor([[1, 2, 3]], dtype=dtype)
    raw_file.write(tmp_path / "raw", {"a": raw_file.copy_for_file(tensor)})
    found = raw_file.read(tmp_path / "raw", "a")
    assert found.dtype == dtype
    assert found.tolist() == tensor.tolist()


def _searches(rank: int, size: int, path: str) -> None:
    signal.signal(signal.SIGALRM, signal.SIG_DFL)  # which pytest's own timeout has taken
    slow = create_trial(path).collection("slow")
    assert slow.has("aaaa")
    for _ in range(2):  # the second time at once
        with pytest.raises(farandole.InvalidArgument, match="did not end within"):
            slow.has("a" * 100 + "!")
    assert signal.getsignal(signal.SIGALRM) == signal.SIG_DFL


def test_a_regular_expression_that_does_not_end_is_given_up(tmp_path: Path) -> None:
    hook, model = open_hook(tmp_path, reduction_config=ELEMENTS)
    hook.add_collection(Collection("slow", include_regex="^(a+)+$"))
    steps_of(hook, model, 1)
    hook.close()
    ranks.run(_searches, 1, str(tmp_path))
