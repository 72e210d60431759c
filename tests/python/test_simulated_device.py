# SPDX-License-Identifier: Apache-2.0
"""torch trains on the simulated accelerator as on the CPU; missing waits are reported."""

from __future__ import annotations

import io
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import pytest
import torch
from torch import Tensor, nn

import ranks
import sim

pytestmark = pytest.mark.parametrize("schedule", sim.SCHEDULES)
STEPS = 4


def in_process(body: Callable[..., None], schedule: str, *args: Any) -> None:
    """Runs a test in a process of its own, which may load the device."""
    ranks.run(_enter, 1, body, schedule, args, setup=ranks.Setup(backend=None))


def _enter(
    rank: int, world_size: int, body: Callable[..., None], schedule: str, args: tuple[Any, ...]
) -> None:
    with sim.schedule(schedule):
        body(*args)


class Words(nn.Module):
    """A transformer over words, and a class for each."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(10, 8)
        self.layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True)
        self.head = nn.Linear(8, 5)

    def forward(self, words: Tensor) -> Tensor:
        return self.head(self.layer(self.embedding(words))).flatten(0, 1)


def perceptron() -> nn.Module:
    return nn.Sequential(nn.Linear(20, 50), nn.ReLU(), nn.LayerNorm(50), nn.Linear(50, 5))


def convolutions() -> nn.Module:
    return nn.Sequential(
        *(nn.Conv2d(3, 8, 3), nn.BatchNorm2d(8), nn.GELU(), nn.MaxPool2d(2)),
        *(nn.ConvTranspose2d(8, 4, 3), nn.AdaptiveAvgPool2d(2), nn.Flatten(), nn.Linear(16, 5)),
    )


@dataclass(frozen=True)
class Task:
    model: Callable[[], nn.Module]
    batch: Callable[[], Tensor]
    outputs: int
    optimizer: Callable[..., torch.optim.Optimizer]
    options: dict[str, Any]
    tolerance: float = 0.0


def images() -> Tensor:
    return torch.randn(8, 3, 8, 8)


def words() -> Tensor:
    return torch.randint(10, (6, 4))


def vectors() -> Tensor:
    return torch.randn(32, 20)


TASKS = {
    "LayerNorm, SGD": Task(perceptron, vectors, 32, torch.optim.SGD, {"momentum": 0.9}),
    "LayerNorm, fused AdamW": Task(perceptron, vectors, 32, torch.optim.AdamW, {"fused": True}),
    "convolutions, AdamW": Task(convolutions, images, 8, torch.optim.AdamW, {}, 1e-5),
    # Gradients of a bias of keys are rounding errors, which a small eps would enlarge.
    "transformer, fused Adam": Task(
        Words, words, 24, torch.optim.Adam, {"fused": True, "eps": 1e-3}, 1e-5
    ),
}


@dataclass
class Results:
    losses: list[Tensor]
    state: dict[str, Tensor]
    host_waits: int = 0


def train(
    task: Task,
    device: str,
    autocast: torch.dtype | None = None,
    scaler: torch.amp.GradScaler | None = None,
) -> Results:
    torch.manual_seed(1)
    model = task.model().to(device)
    batch, target = task.batch().to(device), torch.randint(5, (task.outputs,)).to(device)
    optimizer = task.optimizer(model.parameters(), lr=1e-2, **task.options)
    results = Results([], {}, sim.host_waits())
    for _ in range(STEPS):
        optimizer.zero_grad()
        with torch.autocast(device, autocast, enabled=autocast is not None):
            loss = nn.functional.cross_entropy(model(batch), target)
        if scaler:
            scaler.scale(8 * loss).backward()  # gradients overflow in the first three steps
            scaler.step(optimizer)
            scaler.update()
        else:
            loss.backward()
            optimizer.step()
        results.losses.append(loss.detach())
    results.host_waits = sim.host_waits() - results.host_waits
    results.losses = [loss.cpu() for loss in results.losses]
    results.state = {name: value.cpu() for name, value in model.state_dict().items()}
    return results


def assert_same(got: Results, expected: Results, tolerance: float) -> None:
    torch.testing.assert_close(got.losses, expected.losses, rtol=tolerance, atol=tolerance)
    torch.testing.assert_close(got.state, expected.state, rtol=tolerance, atol=tolerance)


def _trains_as_the_cpu(name: str) -> None:
    task = TASKS[name]
    got = train(task, "sim")
    assert sim.take_waiting_operators() == []
    assert got.host_waits == 0
    assert_same(got, train(task, "cpu"), task.tolerance)


@pytest.mark.parametrize("name", TASKS)
def test_a_model_trains_as_on_the_cpu_and_no_step_waits(name: str, schedule: str) -> None:
    in_process(_trains_as_the_cpu, schedule, name)


def _autocast() -> None:
    task = TASKS["LayerNorm, SGD"]
    got = train(task, "sim", torch.bfloat16)
    assert got.host_waits == 0
    assert_same(got, train(task, "cpu", torch.bfloat16), 1e-2)
    a = torch.ones(2, 2, device="sim")
    with torch.autocast("sim", torch.float16):
        assert (a @ a).dtype == torch.float16
        assert (a @ a).softmax(0).dtype == torch.float32


def test_autocast_is_that_of_cuda(schedule: str) -> None:
    in_process(_autocast, schedule)


def _grad_scaler() -> None:
    task = TASKS["LayerNorm, fused AdamW"]
    scaled = [
        (train(task, device, None, scaler), scaler.get_scale())
        for device in ("sim", "cpu")
        for scaler in [torch.amp.GradScaler(device, init_scale=2.0**127)]
    ]
    (got, scale), (expected, expected_scale) = scaled
    assert scale == expected_scale == 2.0**124
    assert_same(got, expected, 0.0)
    assert got.host_waits == 0  # a fused optimizer skips steps by itself


def test_a_grad_scaler_skips_steps_that_overflow(schedule: str) -> None:
    in_process(_grad_scaler, schedule)


def _save_and_load() -> None:
    model = convolutions().to("sim")
    model(images().to("sim")).sum().backward()
    file = io.BytesIO()
    torch.save(model.state_dict(), file)
    for device in ("sim:0", "cpu", "sim:1"):
        file.seek(0)
        state = torch.load(file, map_location=device)
        for name, value in model.state_dict().items():
            assert state[name].device == torch.device(device)
            assert torch.equal(state[name].cpu(), value.cpu())
    file.seek(0)
    assert torch.load(file)["0.weight"].device == torch.device("sim:0")


def test_tensors_are_saved_and_loaded(schedule: str) -> None:
    in_process(_save_and_load, schedule)


EDGES = ["none", "gradient is there", "gradient is reduced"]


def _side_stream(left_out: str) -> None:
    sim.throw_races(left_out == "none")
    weight = torch.randn(32, 32)
    simulated = weight.to("sim").requires_grad_()
    main, side = sim.current_stream(), sim.Stream()
    seen = []

    def reduce(parameter: Tensor) -> None:
        seen.append(sim.current_stream())
        if left_out != "gradient is there":
            side.wait_stream(sim.current_stream())
        with side:
            parameter.grad.mul_(2)

    simulated.register_post_accumulate_grad_hook(reduce)
    (simulated.tanh() @ simulated).sum().backward()
    assert seen == [main]
    if left_out != "gradient is reduced":
        main.wait_stream(side)
    updated = simulated.grad / 2
    side.wait_stream(main)
    main.wait_stream(side)
    if left_out == "none":
        expected = weight.clone().requires_grad_()
        (expected.tanh() @ expected).sum().backward()
        torch.testing.assert_close(updated.cpu(), expected.grad)
        return
    reports = "\n".join(sim.take_reports())
    assert "no event orders the two streams" in reports
    assert "'mul.out'" in reports


@pytest.mark.parametrize("left_out", EDGES)
def test_a_gradient_on_a_side_stream_needs_both_waits(left_out: str, schedule: str) -> None:
    in_process(_side_stream, schedule, left_out)


def _errors() -> None:
    side = sim.Stream()
    a = torch.zeros(4, device="sim").add_(1)
    with side, pytest.raises(RuntimeError, match=r"'mul.*' .* reads what 'add.*' "):
        a.mul_(2)
    assert sim.take_reports()
    sim.synchronize()
    sim.fail("an illegal access")
    with pytest.raises(RuntimeError, match=r"sim:0 has failed\.\nwhy: an illegal access"):
        a.add_(1)
    with pytest.raises(RuntimeError, match="sim:0 has failed"):
        sim.synchronize()
    sim.reset()
    assert a.sum().item() == 4


def test_a_race_and_a_failure_raise(schedule: str) -> None:
    in_process(_errors, schedule)


def _interface() -> None:
    assert torch.accelerator.current_accelerator() == torch.device("sim")
    with sim.device(1):
        assert torch.ones(1, device="sim").device == torch.device("sim:1")
    torch.manual_seed(7)
    first = torch.rand(4, device="sim")
    torch.manual_seed(7)
    assert torch.equal(torch.rand(4, device="sim").cpu(), first.cpu())
    before = torch.accelerator.memory_allocated()
    kept = torch.ones(1000, device="sim")
    assert torch.accelerator.memory_allocated() - before == kept.nbytes
    begin, end = sim.Event(enable_timing=True), sim.Event(enable_timing=True)
    begin.record()
    kept.add_(1)
    end.record()
    end.synchronize()
    assert begin.elapsed_time(end) >= 0


def test_torchs_interface_to_accelerators(schedule: str) -> None:
    in_process(_interface, schedule)
