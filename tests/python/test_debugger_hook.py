# SPDX-License-Identifier: Apache-2.0
"""What a hook saves is what the training computes."""

from __future__ import annotations

import copy
import importlib.util
import json
import math
import os
import pickle
from pathlib import Path
from typing import Any

import farandole
import numpy as np
import pytest
import torch
import torch.distributed as dist
from farandole.debugger import (
    Collection,
    Hook,
    ModeKeys,
    ReductionConfig,
    SaveConfig,
    SaveConfigMode,
    create_trial,
)
from torch import Tensor, nn

import ranks
import sim
from debugger_training import ELEMENTS, EVERY_STEP, Net, batches, seeded, train

EVERY_REDUCTION = ReductionConfig(
    ["min", "max", "mean", "std", "variance", "sum", "prod"],
    ["min", "max", "mean", "std", "variance", "sum", "prod"],
    ["l1", "l2"],
    ["l1", "l2"],
    save_raw_tensor=True,
)


def test_everything_has_the_name_that_smdebug_gives_it(tmp_path: Path) -> None:
    trial = train(tmp_path, seeded(Net), batches(1), save_all=True)
    parameters = ["first.bias", "first.weight", "second.bias", "second.weight"]
    modules = ["Net", "activation", "first", "second"]
    assert trial.tensor_names() == sorted(
        [
            *(f"Net_{name}" for name in parameters),
            *(f"gradient/Net_{name}" for name in parameters),
            *(f"{name}_{end}_0" for name in modules for end in ("input", "output")),
            *("CrossEntropyLoss_input_0", "CrossEntropyLoss_input_1", "CrossEntropyLoss_output_0"),
        ]
    )
    names = {
        name: trial.tensor_names(collection=name)
        for name in ("weights", "biases", "gradients", "losses", "inputs", "outputs", "relu_output")
    }
    assert names == {
        "weights": ["Net_first.weight", "Net_second.weight"],
        "biases": ["Net_first.bias", "Net_second.bias"],
        "gradients": sorted(f"gradient/Net_{name}" for name in parameters),
        "losses": ["CrossEntropyLoss_output_0"],
        "inputs": ["Net_input_0"],
        "outputs": ["Net_output_0"],
        "relu_output": ["activation_output_0"],
    }


@pytest.mark.parametrize("passes", [1, 2])
def test_values_are_those_of_the_same_training_without_a_hook(tmp_path: Path, passes: int) -> None:
    """With two passes gradients add up; the step of the second one has the sum."""
    data = list(batches(3))
    hook = Hook(tmp_path, save_config=EVERY_STEP, save_all=True, reduction_config=ELEMENTS)
    watched, plain, loss = seeded(Net), seeded(Net), nn.CrossEntropyLoss()
    hook.register_module(watched)
    watched_loss = nn.CrossEntropyLoss()
    hook.register_loss(watched_loss)
    expected: list[dict[str, Tensor]] = []
    optimizers = [torch.optim.SGD(model.parameters(), lr=0.1) for model in (watched, plain)]
    for x, y in data:
        for model in (watched, plain):
            model.zero_grad()
        for _ in range(passes):
            watched_loss(watched(x), y).backward()
            before = {name: each.detach().clone() for name, each in plain.named_parameters()}
            hidden = plain.activation(plain.first(x))
            value = loss(plain.second(hidden), y)
            value.backward()
            gradients = {name: each.grad.clone() for name, each in plain.named_parameters()}
            expected.append(
                {
                    **{f"Net_{name}": each for name, each in before.items()},
                    **{f"gradient/Net_{name}": each for name, each in gradients.items()},
                    "CrossEntropyLoss_output_0": value.detach(),
                    "activation_output_0": hidden.detach(),
                    "CrossEntropyLoss_input_1": y,
                }
            )
        for optimizer in optimizers:
            optimizer.step()
    hook.close()
    trial = create_trial(tmp_path)
    assert trial.steps() == list(range(3 * passes))
    for step, tensors in enumerate(expected):
        for name, tensor in tensors.items():
            saved = trial.tensor(name).value(step)
            assert saved.dtype == tensor.numpy().dtype
            assert np.array_equal(saved, tensor.numpy()), (step, name)


def by_hand(values: Tensor) -> dict[str, float]:
    """The reductions of a tensor in float64."""
    x = values.double()
    n = x.numel()
    mean = math.fsum(x.flatten().tolist()) / n
    variance = math.fsum((v - mean) ** 2 for v in x.flatten().tolist()) / (n - 1)
    return {
        "min": min(x.flatten().tolist()),
        "max": max(x.flatten().tolist()),
        "mean": mean,
        "std": math.sqrt(variance),
        "variance": variance,
        "sum": mean * n,
        "prod": math.prod(x.flatten().tolist()),
        "l1": math.fsum(map(abs, x.flatten().tolist())),
        "l2": math.sqrt(math.fsum(v * v for v in x.flatten().tolist())),
    }


DTYPES = [torch.float32, torch.float64, torch.bfloat16, torch.float16, torch.int64, torch.uint8]


@pytest.mark.parametrize("dtype", DTYPES)
def test_reductions_and_elements_of_each_dtype(tmp_path: Path, dtype: torch.dtype) -> None:
    tensor = torch.tensor([[3, 1, 0], [2, 5, 4]]).to(dtype)
    tensor = tensor if dtype == torch.uint8 else tensor * torch.tensor([1, -1, 1], dtype=dtype)
    hook = Hook(tmp_path, save_config=EVERY_STEP, include_regex="x_output")
    hook.reduction_config = EVERY_REDUCTION
    hook.record_tensor_value("x", tensor)
    hook.close()
    saved = create_trial(tmp_path).tensor("x_output_0")
    assert np.array_equal(saved.value(0), tensor.double().numpy())
    assert saved.shape(0) == (2, 3)
    assert saved.counts(0) == farandole.debugger.Counts(6, zeros=1, nan=0, inf=0)
    for absolute in (False, True):
        for name, number in by_hand(tensor.double().abs() if absolute else tensor).items():
            assert saved.reduction_values(0)[name, absolute] == pytest.approx(number, rel=1e-6)


def test_tensors_that_are_not_like_others(tmp_path: Path) -> None:
    nan = float("nan")
    weight = torch.ones(3, 2, requires_grad=True)
    rows = nn.functional.embedding(torch.tensor([1, 1, 2]), weight, sparse=True)
    (rows * torch.tensor([1.0, 0.0])).sum().backward()
    sparse = weight.grad
    assert sparse is not None
    assert not sparse.is_coalesced()
    given = {
        "empty": torch.empty(0, 3),
        "sparse": sparse,
        "nonfinite": torch.tensor([1.0, nan, math.inf, -math.inf, 0.0]),
        "scalar": torch.tensor(nan),
        "huge": torch.full((4,), 1e38),
        "half": torch.full((70000,), 1.0, dtype=torch.float16),
        "bool": torch.tensor([True, False, True]),
        "complex": torch.tensor([3 + 4j, 0j]),
        "strided": torch.arange(12.0).view(3, 4).t()[::2],
        "big_integer": torch.tensor([2**40, 2**40]),
    }
    hook = Hook(tmp_path, save_config=EVERY_STEP, include_regex=".*")
    for name, tensor in given.items():
        hook.record_tensor_value(name, tensor)
        hook.save_tensor(name, tensor)
    hook.close()
    trial = create_trial(tmp_path)
    for name, tensor in given.items():
        expected = tensor.to_dense() if tensor.is_sparse else tensor
        saved = trial.tensor(name).value(0)
        assert np.array_equal(saved, expected.numpy(), equal_nan=saved.dtype.kind == "f"), name

    def reduction(name: str, key: str, absolute: bool = False) -> float:
        return trial.tensor(f"{name}_output_0").reduction_value(0, key, abs=absolute)

    with pytest.raises(farandole.debugger.TensorUnavailableForStep, match="neither mean"):
        reduction("empty", "mean")
    assert reduction("sparse", "max") == 2.0
    assert reduction("sparse", "mean") == 0.5
    assert math.isnan(reduction("nonfinite", "max"))
    counts = trial.tensor("nonfinite_output_0").counts(0)
    assert (counts.size, counts.zeros, counts.nan, counts.inf) == (5, 1, 1, 2)
    assert trial.tensor("huge_output_0").counts(0).inf == 0  # though its l2 norm overflows
    assert reduction("huge", "l2") == math.inf
    assert reduction("half", "mean") == 1.0
    assert reduction("half", "sum") == 70000.0  # above what float16 can hold
    assert reduction("bool", "mean") == pytest.approx(2 / 3)
    assert reduction("complex", "max") == 5.0
    assert reduction("big_integer", "mean") == 2**40


def test_each_mode_has_steps_and_a_save_config_of_its_own(tmp_path: Path) -> None:
    config = {
        ModeKeys.TRAIN: SaveConfigMode(save_interval=3, start_step=1, end_step=7),
        ModeKeys.EVAL: SaveConfigMode(save_interval=100, save_steps=[1]),
    }
    hook = Hook(tmp_path, save_config=config, include_collections=["gradients"])
    model, loss = seeded(Net), nn.CrossEntropyLoss()
    hook.register_module(model)
    hook.register_loss(loss)
    order = [*[ModeKeys.TRAIN] * 4, *[ModeKeys.EVAL] * 3, *[ModeKeys.TRAIN] * 7]
    for mode, (x, y) in zip(order, batches(len(order)), strict=True):
        hook.set_mode(mode)
        assert hook.get_mode() == mode
        loss(model(x), y).backward()
    hook.close()
    trial = create_trial(tmp_path)
    assert trial.modes() == [ModeKeys.TRAIN, ModeKeys.EVAL]
    assert trial.steps(ModeKeys.TRAIN) == [3, 6]
    assert trial.steps(ModeKeys.EVAL) == [0, 1]
    assert trial.steps() == [3, 4, 5, 9]
    assert [trial.mode(step) for step in (3, 5)] == [ModeKeys.TRAIN, ModeKeys.EVAL]
    assert (trial.mode_step(9), trial.global_step(ModeKeys.TRAIN, 6)) == (6, 9)
    assert trial.tensor("CrossEntropyLoss_output_0").steps(ModeKeys.EVAL) == [0, 1]
    assert trial.tensor("gradient/Net_first.bias").steps() == [3, 9]  # none in evaluation
    assert trial.tensor_names(step=1, mode=ModeKeys.EVAL) == ["CrossEntropyLoss_output_0"]


def test_a_collection_has_steps_and_reductions_of_its_own(tmp_path: Path) -> None:
    hook = Hook(tmp_path, save_config=SaveConfig(save_interval=2), include_collections=["mine"])
    model = seeded(Net)
    own = Collection(
        "mine",
        include_regex="bias",
        reduction_config=ReductionConfig(["mean"]),
        save_config=SaveConfig({ModeKeys.GLOBAL: SaveConfigMode(3)}),
    )
    own.add_module_tensors(model.first, inputs=True)
    hook.add_collection(own)
    loss = nn.CrossEntropyLoss()
    hook.register_module(model)
    hook.register_loss(loss)
    for x, y in batches(7):
        loss(model(x), y).backward()
    assert hook.should_save_tensor_or_collection("x", "losses")
    assert not hook.should_save_tensor_or_collection("x", "weights")
    hook.close()
    trial = create_trial(tmp_path)
    assert trial.steps() == [0, 2, 3, 4, 6]
    assert trial.tensor("Net_first.bias").steps() == [0, 3, 6]
    assert trial.tensor("Net_first.bias").reduction_values(3).keys() == {("mean", False)}
    assert {"first_input_0", "first_output_0"} <= set(trial.tensor_names(step=3))
    assert "second_output_0" not in trial.tensor_names()
    assert trial.tensor_names(step=2) == ["CrossEntropyLoss_output_0"]


def test_steps_that_are_not_saved_have_one_hook_alone(tmp_path: Path) -> None:
    hook = Hook(tmp_path, save_config=SaveConfig(save_interval=4), save_all=True)
    model = seeded(Net)
    hook.register_module(model)
    counts = []
    for x, _ in batches(6):
        output = model(x)
        counts.append(
            sum(len(part._forward_hooks) + len(part._forward_pre_hooks) for part in model.modules())
        )
        counts[-1] += len(output._backward_hooks or ())
        output.sum().backward()
    assert [count == 1 for count in counts] == [False, True, True, True, False, True]
    hook.close()


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.Linear(2, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, list[Tensor]]:
        return self.layer(self.layer(x)), [x, x + 1]


def test_calls_and_outputs_of_a_module_are_numbered(tmp_path: Path) -> None:
    hook = Hook(
        tmp_path, save_config=EVERY_STEP, include_regex="_output", reduction_config=ELEMENTS
    )
    model = Twice()
    hook.register_module(model)
    model(torch.ones(1, 2))
    hook.close()
    trial = create_trial(tmp_path)
    names = ["layer_output_0", "layer_output_1", *(f"Twice_output_{i}" for i in range(3))]
    assert trial.tensor_names() == sorted(names)
    assert trial.tensor("Twice_output_2").value(0).tolist() == [[2.0, 2.0]]


def test_inputs_that_a_layer_changes_in_place_are_saved_as_hooks_see_them(tmp_path: Path) -> None:
    """A hook runs after forward, so an in-place ReLU shows its output as its input too."""
    model = seeded(lambda: Net(nn.ReLU(inplace=True)))
    trial = train(tmp_path, model, batches(1), save_all=True, reduction_config=ELEMENTS)
    assert trial.tensor("first_output_0").value(0).min() < 0  # taken before it was changed
    assert trial.tensor("activation_output_0").value(0).min() == 0


def test_a_frozen_parameter_has_no_gradient_and_no_grad_has_none(tmp_path: Path) -> None:
    model = seeded(Net)
    model.first.weight.requires_grad_(False)
    trial = train(tmp_path, model, batches(1), include_collections=["gradients"])
    assert "gradient/Net_first.weight" not in trial.tensor_names()
    assert "gradient/Net_first.bias" in trial.tensor_names()


def test_a_copy_of_a_module_is_not_looked_at(tmp_path: Path) -> None:
    hook = Hook(tmp_path, save_config=EVERY_STEP, save_all=True)
    model = seeded(Net)
    hook.register_module(model)
    x = next(batches(1))[0]
    model(x)
    copied = copy.deepcopy(model)  # also in the middle of a step
    copied(x)
    assert hook.step == 0
    model(x)
    copied(x)
    assert hook.step == 1
    hook.close()


def test_a_compiled_module_is_unwrapped(tmp_path: Path) -> None:
    model = torch.compile(seeded(Net), backend="eager")
    trial = train(tmp_path, model, batches(2), include_collections=["gradients", "weights"])
    assert trial.tensor("gradient/Net_first.weight").steps() == [0, 1]


def test_scalars_and_dry_run(tmp_path: Path) -> None:
    hook = Hook(tmp_path / "a")
    for value in (0.5, torch.tensor([2.0])):
        hook.save_scalar("rate", value, sm_metric=True)
    hook.save_scalar("exact", 0.1)
    hook.save_scalar("time", 3, timestamp=12.5)
    with pytest.raises(farandole.InvalidArgument, match="got 2 numbers"):
        hook.save_scalar("rate", torch.ones(2))
    hook.close()
    trial = create_trial(tmp_path / "a")
    assert trial.tensor("scalar/rate").value(0) == 2.0
    assert trial.tensor_names(collection="scalars") == [
        "scalar/exact",
        "scalar/rate",
        "scalar/time",
    ]
    assert trial.tensor("scalar/exact").value(0) == 0.1
    assert trial.tensor("scalar/exact").reduction_value(0, "mean") == 0.1
    dry = Hook(tmp_path / "b", dry_run=True, save_config=EVERY_STEP, save_all=True)
    model = seeded(Net)
    dry.register_module(model)
    model(next(batches(1))[0]).sum().backward()
    dry.close()
    assert not (tmp_path / "b").exists()


def test_a_hook_is_made_of_sagemakers_json(tmp_path: Path) -> None:
    config = {
        "S3OutputPath": "s3://bucket/prefix",
        "LocalPath": str(tmp_path / "out"),
        "HookParameters": {
            "save_interval": "2",
            "include_regex": "first_output, second_output",
            "reductions": "min,abs_mean,l2_norm",
            "include_workers": "all",
        },
        "CollectionConfigurations": [
            {"CollectionName": "weights", "CollectionParameters": {"train.save_steps": "1,3"}},
            {
                "CollectionName": "mine",
                "CollectionParameters": {"include_regex": "bias", "save_raw_tensor": "true"},
            },
        ],
    }
    path = tmp_path / "hook.json"
    path.write_text(json.dumps(config))
    hook = Hook.create_from_json_file(path)
    hook.set_mode(ModeKeys.TRAIN)
    model = seeded(Net)
    hook.register_module(model)
    for x, _ in batches(4):
        model(x)
    hook.close()
    trial = create_trial(tmp_path / "out")
    assert trial.tensor("first_output_0").steps() == [0, 2]
    assert trial.tensor("first_output_0").reduction_values(0).keys() == {
        ("min", False),
        ("mean", True),
        ("l2", False),
    }
    assert trial.tensor("Net_first.weight").steps(ModeKeys.TRAIN) == [0, 1, 2, 3]
    assert trial.tensor("Net_first.bias").value(0).shape == (8,)
    path.write_text("{}")
    with pytest.raises(farandole.InvalidArgument, match=r"(?s)KeyError: 'LocalPath'.*-json"):
        Hook.create_from_json_file(path)


def test_two_hooks_do_not_write_into_one_folder(tmp_path: Path) -> None:
    first, second = Hook(tmp_path), Hook(tmp_path)
    first.save_scalar("rate", 1.0)
    with pytest.raises(farandole.InvalidArgument, match=r"another hook is writing.*worker_0"):
        second.save_scalar("rate", 2.0)
    first.close()
    second.save_scalar("momentum", 3.0)
    second.close()
    assert create_trial(tmp_path).tensor_names() == ["scalar/momentum", "scalar/rate"]


@pytest.mark.parametrize(
    "text",
    [
        b"[" * 9999,
        b'{"LocalPath": "x", "HookParameters": {"save_interval": Infinity}}',
        b'{"LocalPath": "x", "HookParameters": {"save_interval": 1e999}}',
        b'{"LocalPath": "\\ud800"}',
        b'{"LocalPath": "\xff"}',
    ],
)
def test_json_that_configures_no_hook_is_an_error(text: bytes, tmp_path: Path) -> None:
    path = tmp_path / "hook.json"
    path.write_bytes(text)
    for each in (path, tmp_path, tmp_path / ("x" * 300)):
        with pytest.raises(farandole.InvalidArgument, match=r"does not configure a hook"):
            Hook.create_from_json_file(each)


def test_a_parameter_of_the_json_that_has_no_effect_is_named(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config: dict[str, Any] = {
        "LocalPath": str(tmp_path / "out"),
        "HookParameters": {"save_intervall": "2", "eval.save_interval": "1"},
        "CollectionConfigurations": [
            {"CollectionName": "biases", "CollectionParameters": {"norm": "l2"}}
        ],
    }
    path = tmp_path / "hook.json"
    path.write_text(json.dumps(config))
    Hook.create_from_json_file(path)
    assert [each.getMessage() for each in caplog.records] == [
        "the debugger's configuration: HookParameters has no parameter save_intervall",
        "the debugger's configuration: the collection 'biases' has no parameter norm",
    ]


def misuse() -> list[tuple[str, Any]]:
    def hook() -> Hook:
        return Hook("unused", dry_run=True)

    def twice() -> None:
        one, model = hook(), Net()
        one.register_module(model)
        one.register_loss(model.first)

    return [
        ("include_workers='some'", lambda: Hook("unused", include_workers="some")),
        ("save_interval=0", lambda: SaveConfig(save_interval=0)),
        ("save_interval='10'", lambda: SaveConfig(save_interval="10")),  # type: ignore[arg-type]
        ("save_config is 3", lambda: Hook("unused", save_config=3)),
        ("save_config is {", lambda: Hook("unused", save_config={ModeKeys.TRAIN: 10})),
        (r"regular expression '\['", lambda: Hook("unused", include_regex="[")),
        ("reduction 'median'", lambda: ReductionConfig(["median"])),
        ("reduction 'l3'", lambda: ReductionConfig(norms=["l3"])),
        ("got 'train'", lambda: hook().set_mode("train")),
        ("got a int, which is no module", lambda: hook().register_module(3)),
        ("got a Linear, again", twice),
        ("no collection 'x'", lambda: hook().get_collection("x", create=False)),
    ]


@pytest.mark.parametrize(("text", "call"), misuse(), ids=lambda value: str(value)[:20])
def test_misuse_is_told(text: str, call: Any) -> None:
    with pytest.raises(farandole.InvalidArgument, match=text):
        call()


def test_tensorboard_if_it_is_installed(tmp_path: Path) -> None:
    if importlib.util.find_spec("tensorboard") is None:
        with pytest.raises(farandole.NotSupported, match="pip install tensorboard"):
            Hook(tmp_path, export_tensorboard=True)
        return
    hook = Hook(tmp_path, export_tensorboard=True)
    hook.save_scalar("rate", 1.0)
    hook.close()
    assert list((tmp_path / "tensorboard" / "global").glob("events.*"))


def train_in_a_group(rank: int, world_size: int, path: str, kind: str) -> dict[str, Any]:
    """Two steps; returns the gradients that the optimizer got."""
    torch.manual_seed(0)
    model = Net()
    hook = Hook(
        f"{path}/{kind}",
        save_config=EVERY_STEP,
        include_collections=["gradients", "weights"],
        reduction_config=ELEMENTS,
        include_workers="one" if kind == "one" else "all",
    )
    if kind == "inner":
        hook.register_module(model)
    make = (
        nn.parallel.DistributedDataParallel
        if kind == "torch"
        else farandole.DistributedDataParallel
    )
    wrapped = make(model)
    if kind != "inner":
        hook.register_module(wrapped)
    loss = nn.CrossEntropyLoss()
    hook.register_loss(loss)
    seen = []
    for step, (x, y) in enumerate(batches(2)):
        wrapped.zero_grad()
        share = slice(rank, None, world_size)
        loss(wrapped(x[share]), y[share]).backward()
        seen.append({name: each.grad.tolist() for name, each in model.named_parameters()})
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= 0.1 * parameter.grad
        assert hook.step == step
    hook.close()
    dist.barrier()
    return {"seen": seen}


@pytest.mark.parametrize("kind", ["farandole", "torch", "inner", "one"])
def test_gradients_of_ranks_are_the_averages(tmp_path: Path, kind: str) -> None:
    results = ranks.run(train_in_a_group, 2, str(tmp_path), kind)
    trial = create_trial(tmp_path / kind)
    workers = ["worker_0"] if kind == "one" else ["worker_0", "worker_1"]
    assert trial.workers() == workers
    assert trial.steps() == [0, 1]
    for worker in workers:
        seen = results[int(worker[-1])]["seen"]
        for step in (0, 1):
            for name, gradient in seen[step].items():
                tensor = trial.tensor(f"gradient/Net_{name}")
                assert tensor.workers(step) == workers
                assert np.array_equal(
                    tensor.value(step, worker=worker), np.array(gradient, np.float32)
                )
    if kind != "one":
        losses = trial.tensor("CrossEntropyLoss_output_0")
        assert losses.value(0, worker="worker_0") != losses.value(0, worker="worker_1")
    with pytest.raises(farandole.InvalidArgument, match="saved by worker_0"):
        trial.tensor("Net_first.weight").value(0, worker="worker_9")


def _constructs_late(rank: int, world_size: int, folder: str) -> None:
    if rank == 1:
        dist.barrier()  # rank 0 has saved a step
    hook = Hook(
        folder, include_workers="all", include_collections=["gradients"], save_config=EVERY_STEP
    )
    assert hook.step == -1
    hook.register_module(net := nn.Linear(2, 2))
    net(torch.ones(1, 2)).sum().backward()
    if rank == 0:
        dist.barrier()
    dist.barrier()  # rank 0 has not ended before
    assert hook.step == 0
    hook.close()


def test_a_rank_that_is_late_counts_as_the_others(tmp_path: Path) -> None:
    ranks.run(_constructs_late, 2, str(tmp_path))
    assert create_trial(tmp_path).steps() == [0]


def train_sharded(rank: int, world_size: int, path: str) -> list[float]:
    """The first step of ZeRO, whose gradients are averaged by the optimizer and not by backward."""
    torch.manual_seed(0)
    model = farandole.DistributedDataParallel(Net())
    optimizer = farandole.ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, lr=0.1, gradients="shard"
    )
    scaler = farandole.GradScaler("cpu", init_scale=8.0)
    hook = Hook(
        path,
        save_config=EVERY_STEP,
        include_collections=["gradients"],
        reduction_config=ELEMENTS,
        include_workers="all",
    )
    hook.register_module(model)
    x = next(batches(1))[0][rank::world_size]
    scaler.scale(model(x).square().mean()).backward()
    scaler.step(optimizer)
    hook.close()
    torch.manual_seed(0)
    alone = Net()
    (alone(x).square().mean() * 8.0).backward()
    assert alone.second.bias.grad is not None
    return alone.second.bias.grad.tolist()


def test_gradients_of_a_sharded_step_are_the_ranks_own_and_scaled(tmp_path: Path) -> None:
    expected = ranks.run(train_sharded, 2, str(tmp_path))
    tensor = create_trial(tmp_path).tensor("gradient/Net_second.bias")
    for rank in range(2):
        saved = tensor.value(0, worker=f"worker_{rank}")
        assert saved.tolist() == pytest.approx(expected[rank], rel=1e-5)
    assert expected[0] != pytest.approx(expected[1], rel=1e-2)


def go_on_alone(rank: int, world_size: int, path: str) -> None:
    hook = Hook(path, save_config=EVERY_STEP, include_regex="Net_output", reduction_config=ELEMENTS)
    model = Net()
    with torch.no_grad():
        model.second.bias.fill_(float(rank))
        model.second.weight.zero_()
    hook.register_module(model)
    for _ in range(2):
        model(torch.ones(1, 4))
        if dist.is_initialized():
            dist.barrier()
            farandole.destroy()
    hook.close()


def test_a_rank_stays_what_it_is_when_its_group_has_ended(tmp_path: Path) -> None:
    ranks.run(go_on_alone, 2, str(tmp_path))
    trial = create_trial(tmp_path)
    assert trial.workers() == ["worker_0"]
    assert len(list((tmp_path / "tensors").glob("*.jsonl"))) == 1
    assert [value.max() for value in trial.tensor("Net_output_0").values().values()] == [0.0, 0.0]


def train_on_a_device(rank: int, world_size: int, path: str) -> None:
    """The default device is the simulated accelerator; its streams are late."""
    torch.manual_seed(0)
    model = Net()
    hook = Hook(path, save_config=EVERY_STEP, save_all=True, include_workers="all")
    wrapped = farandole.DistributedDataParallel(model)
    hook.register_module(wrapped)
    assert next(model.parameters()).device.type == "sim"
    for x, _ in batches(2):
        wrapped.zero_grad()
        wrapped(x[rank::world_size].to("sim")).square().mean().backward()
    seen = {name: each.grad.cpu() for name, each in model.named_parameters()}
    hook.close()
    trial = create_trial(path)
    for name, gradient in seen.items():
        tensor = trial.tensor(f"gradient/Net_{name}")
        for key, number in by_hand(gradient).items():
            if ("std" if key == "variance" else key) in ("min", "max", "mean", "std", "l2"):
                saved = tensor.reduction_value(1, key, worker=f"worker_{rank}")
                assert saved == pytest.approx(number, rel=1e-5, abs=1e-7), (name, key)
        assert tensor.counts(1, worker=f"worker_{rank}").nan == 0


@pytest.mark.parametrize("backend", sim.backends("lazy", "slow_side"))
def test_tensors_of_an_accelerator(tmp_path: Path, backend: str) -> None:
    ranks.run(train_on_a_device, 2, str(tmp_path / "out"), setup=ranks.Setup(backend=backend))


def test_a_second_model_needs_a_hook_of_its_own(tmp_path: Path) -> None:
    hook, generator, discriminator = Hook(tmp_path), nn.Linear(2, 2), nn.Linear(2, 2)
    hook.register_module(generator)
    with pytest.raises(farandole.InvalidArgument, match="debugger-second-module"):
        hook.register_module(discriminator)


def test_scripted_modules_take_no_hooks(tmp_path: Path) -> None:
    scripted = torch.jit.script(nn.Linear(2, 2))
    with pytest.raises(farandole.NotSupported, match="RecursiveScriptModule"):
        Hook(tmp_path).register_module(scripted)


def saved_by(tmp_path: Path, module: nn.Module, **options: Any) -> Any:
    """One step with ones."""
    hook = Hook(tmp_path, save_config=EVERY_STEP, **options)
    hook.register_module(module)
    module(torch.ones(1, 2)).sum().backward()
    hook.close()
    return create_trial(tmp_path)


def test_one_collection_may_be_a_string(tmp_path: Path) -> None:
    trial = saved_by(tmp_path, nn.Linear(2, 2), include_collections="gradients")
    assert trial.tensor_names() == ["gradient/Linear_bias", "gradient/Linear_weight"]


def test_nested_and_quantized_tensors_are_saved_too(tmp_path: Path) -> None:
    rows = [torch.tensor([1.0, 2.0]), torch.tensor([[3.0]])]
    hook = Hook(tmp_path, save_config=EVERY_STEP)
    hook.save_tensor("nested", torch.nested.nested_tensor([rows[0], rows[0]]))
    hook.save_tensor("jagged", torch.nested.nested_tensor([rows[0]], layout=torch.jagged))
    hook.save_tensor("quantized", torch.quantize_per_tensor(rows[0], 0.5, 0, torch.quint8))
    hook.close()
    trial = create_trial(tmp_path)
    assert trial.tensor("nested").value(0).tolist() == [1.0, 2.0, 1.0, 2.0]
    assert trial.tensor("jagged").value(0).tolist() == [1.0, 2.0]
    assert trial.tensor("quantized").value(0).tolist() == [1.0, 2.0]


def test_a_folder_that_cannot_be_made_does_not_end_a_training(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    hook = Hook(tmp_path / "file", save_config=EVERY_STEP, save_all=True)
    model = nn.Linear(2, 2)
    hook.register_module(model)
    for _ in range(2):
        model(torch.ones(1, 2)).sum().backward()
    hook.close()


def test_a_forked_child_does_not_write_to_the_files_of_its_parent(tmp_path: Path) -> None:
    hook = Hook(tmp_path, save_config=EVERY_STEP, save_all=True)
    model = nn.Linear(2, 2)
    hook.register_module(model)
    model(torch.ones(1, 2))
    child = os.fork()
    if child == 0:
        with torch.no_grad():
            model(torch.ones(1, 2))
            model(torch.ones(1, 2))
        os._exit(0)
    os.waitpid(child, 0)
    hook.close()
    assert create_trial(tmp_path).steps() == [0]


def test_a_training_that_goes_on_is_not_stopped_again(tmp_path: Path) -> None:
    """Its first step may be one that is not saved."""
    for _ in range(2):
        hook = Hook(tmp_path, save_config=SaveConfig(save_interval=5), save_all=True)
        model = nn.Linear(2, 2)
        hook.register_module(model)
        model(torch.ones(1, 2))
        assert not hook.stop_file.exists()
        hook.close()
        hook.stop_file.touch()


def test_a_module_that_is_registered_after_the_first_line_is_in_the_collections(
    tmp_path: Path,
) -> None:
    hook = Hook(tmp_path, save_config=EVERY_STEP, include_collections=["inputs"])
    hook.save_scalar("before", 1.0)
    model = seeded(Net)
    hook.register_module(model)
    model(next(batches(1))[0])
    hook.close()
    assert create_trial(tmp_path).tensor_names(collection="inputs") == ["Net_input_0"]


def test_a_module_that_is_looked_at_is_pickled_without_its_hook(tmp_path: Path) -> None:
    hook = Hook(tmp_path, save_config=EVERY_STEP, save_all=True)
    model, loss = nn.Linear(2, 2), nn.MSELoss()
    hook.register_module(model)
    hook.register_loss(loss)
    loss(model(torch.ones(1, 2)), torch.ones(1, 2)).backward()
    for count in range(2):  # within a step that is saved, and between such steps
        again, again_loss = pickle.loads(pickle.dumps((model, loss)))
        copied = copy.deepcopy(model)
        for each in (again, copied):
            again_loss(each(torch.ones(1, 2)), torch.ones(1, 2)).backward()
            assert torch.equal(each.weight, model.weight)
        hook.close()
        assert create_trial(tmp_path).steps() == [0], count
