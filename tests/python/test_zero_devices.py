# SPDX-License-Identifier: Apache-2.0
"""farandole.ZeroRedundancyOptimizer and GradScaler with parameters on accelerators.

What they have in common with the CPU is in the other files, with ``zero_oracle.PAIRS``.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole import DistributedDataParallel, ZeroRedundancyOptimizer
from farandole.optim import LAMB, LARS, full_state
from torch import nn, optim
from torch.amp import GradScaler as TorchGradScaler
from torch.utils._python_dispatch import TorchDispatchMode

import ranks
import sim
from whole_optimizers import Shampoo
from zero_oracle import DEVICES, Bowl, Trial, needs_devices

pytestmark = needs_devices

CASES: list[tuple[type[optim.Optimizer], dict[str, Any]]] = [
    (optim.AdamW, {"lr": 0.01}),
    (optim.Adam, {"lr": 0.01, "amsgrad": True, "weight_decay": 0.1}),
    (optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (LAMB, {"lr": 0.01}),
    (LARS, {"lr": 0.1, "weight_decay": 0.01}),
    (optim.RMSprop, {"lr": 0.01, "momentum": 0.9}),
]


def _model() -> nn.Module:
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(7, 16), nn.ReLU(), nn.Linear(16, 3))


def _waits(rank: int, world_size: int, gradients: Any) -> None:
    """A steady step never waits for the device."""
    torch.set_default_device("cpu")  # as programs have it: torch's counts of steps are there
    device = torch.device("sim", rank)
    for optimizer, options in CASES:
        for dtype in (torch.float32, torch.bfloat16):
            model = DistributedDataParallel(_model().to(device, dtype))
            sharded = ZeroRedundancyOptimizer(
                model.parameters(), optimizer, gradients=gradients, **options
            )
            inputs = torch.randn(4, 7).to(device, dtype)
            for step in range(5):
                if step == 2:
                    sim.let_go()
                sharded.zero_grad()
                model(inputs).square().mean().backward()
                before = sim.host_waits()
                sim.take_waiting_operators()
                sharded.clip_grad_norm_(0.5)
                sharded.step()
                if step >= 2:
                    waits = sim.host_waits() - before
                    operators = sim.take_waiting_operators()
                    assert waits == 0, f"{optimizer.__name__} {dtype}: {waits}: {operators}"


@pytest.mark.parametrize("gradients", ["full", "shard"])
@pytest.mark.parametrize("backend", DEVICES)
def test_a_steady_step_waits_for_nothing(backend: str, gradients: str) -> None:
    ranks.run(_waits, 2, gradients, setup=ranks.Setup(backend=backend))


def _by_torch(rank: int, world_size: int) -> None:
    """Operations of torch, for devices without kernels, train as the kernels do."""
    for optimizer, options in CASES[:-1]:
        for dtype in (torch.float32, torch.bfloat16):
            trained = []
            for kernels in ("auto", "torch"):
                os.environ["FARANDOLE_DEVICE_KERNELS"] = kernels
                model = DistributedDataParallel(_model().to(f"sim:{rank}", dtype))
                sharded = ZeroRedundancyOptimizer(model.parameters(), optimizer, **options)
                for step in range(4):
                    sharded.zero_grad()
                    torch.manual_seed(step * world_size + rank)
                    model(torch.randn(4, 7).to(f"sim:{rank}", dtype)).square().mean().backward()
                    sharded.clip_grad_norm_(0.5)
                    sharded.step()
                trained.append([each.detach().cpu() for each in model.parameters()])
            torch.testing.assert_close(*trained, msg=f"{optimizer.__name__} {dtype}")


@pytest.mark.parametrize("backend", DEVICES)
def test_operations_of_torch_train_as_kernels(backend: str) -> None:
    ranks.run(_by_torch, 2, setup=ranks.Setup(backend=backend))


def _scaled(rank: int, world_size: int, gradients: Any) -> None:
    """Under autocast, with a scale: as torch in one process, and the host reads one flag a step."""
    torch.set_default_device("cpu")
    device = torch.device("sim", rank)
    own, alone = _model(), _model()
    model = DistributedDataParallel(own.to(device))
    sharded = ZeroRedundancyOptimizer(
        model.parameters(), optim.AdamW, gradients=gradients, lr=0.01, eps=1e-3
    )
    unsharded = optim.AdamW(alone.parameters(), lr=0.01, eps=1e-3)
    scaler, torchs = farandole.GradScaler(init_scale=256.0), TorchGradScaler("cpu", 256.0)
    batches = torch.randn(6, world_size, 4, 7)
    for step, batch in enumerate(batches):
        inputs = batch[rank].to(device)
        sharded.zero_grad()
        unsharded.zero_grad()
        with farandole.autocast(dtype="bf16"):  # of the accelerator
            output = model(inputs)
        assert output.dtype == torch.bfloat16
        scaler.scale(output.float().square().mean()).backward()
        before = sim.host_waits()
        sim.take_waiting_operators()
        scaler.step(sharded)
        scaler.update()
        if step >= 2:
            waits, operators = sim.host_waits() - before, sim.take_waiting_operators()
            assert waits == 1, operators
        for each in batch:
            with torch.autocast("cpu", torch.bfloat16):
                output = alone(each)
            torchs.scale(output.float().square().mean() / world_size).backward()
        torchs.step(unsharded)
        torchs.update()
        assert scaler.get_scale() == torchs.get_scale()
    for p, wanted in zip(own.parameters(), alone.parameters(), strict=True):
        torch.testing.assert_close(p.detach().cpu(), wanted.detach(), rtol=0.01, atol=0.003)


@pytest.mark.parametrize("gradients", ["full", "shard"])
@pytest.mark.parametrize("backend", DEVICES)
def test_the_host_reads_one_flag_of_a_scaled_step(backend: str, gradients: str) -> None:
    ranks.run(_scaled, 2, gradients, setup=ranks.Setup(backend=backend))


class Dying(optim.SGD):
    """The rank that has it is killed in its second step."""

    steps = 0

    def step(self, closure: Any = None) -> None:
        super().step()
        self.steps += 1
        if self.steps == 2 and dist.get_rank() == 1:
            os.kill(os.getpid(), signal.SIGKILL)


def _dies(rank: int, world_size: int, gradients: Any) -> None:
    trial = Trial(Bowl(), optim.SGD, gradients=gradients, lr=0.1)
    trial.sharded = ZeroRedundancyOptimizer(
        trial.model.parameters(), Dying, gradients=gradients, element_wise=True, lr=0.1
    )
    trial.train(range(1))
    trial.backward(1)
    with pytest.raises(farandole.PeerFailure, match="rank 1"):
        trial.sharded.step()
    sim.take_reports()  # NCCL was aborted in the middle


@pytest.mark.parametrize("gradients", ["full", "shard"])
@pytest.mark.parametrize("backend", DEVICES)
def test_a_rank_that_is_killed_in_a_step_is_named(backend: str, gradients: str) -> None:
    ranks.run(_dies, 3, gradients, setup=ranks.Setup(backend=backend), may_die=[1])


class Watch(TorchDispatchMode):
    """Sees how many bytes of the device are in use at once."""

    def __init__(self) -> None:
        super().__init__()
        self.most = 0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        self.most = max(self.most, torch.accelerator.memory_allocated())
        return result


WHOLE = [(optim.AdamW, {}), (optim.RMSprop, {"momentum": 0.9}), (Shampoo, {})]
"""With loops of ours, on shards, and on whole parameters; the last has states of other shapes."""


def _tensors_in(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    inside = value.values() if isinstance(value, dict) else value
    return [t for v in inside for t in _tensors_in(v)] if isinstance(value, dict | list) else []


def _short(rank: int, world_size: int) -> None:
    """All raise where one rank fails in a gather, and go on."""
    for optimizer, options in WHOLE:
        shapes = [((33, 17), torch.float32), ((5, 60), torch.float64)]
        trial = Trial(Bowl(shapes), optimizer, lr=0.01, **options)
        trial.train(range(2))
        groups = trial.sharded.param_groups
        for failing in range(world_size):
            with pytest.MonkeyPatch.context() as patch:
                if rank == failing:
                    patch.setattr(full_state._Travel, "prepare", _no_memory)
                expected: Any = RuntimeError if rank == failing else farandole.StepError
                with pytest.raises(expected, match="no memory" if optimizer is Shampoo else ""):
                    _gather_badly(trial.sharded, rank == failing)
        with torch.device("cpu"):  # as programs have it
            states = trial.sharded._stepper.gather(groups, 1)
        assert all(tensor.device.type == "cpu" for tensor in _tensors_in(states))
        trial.train(range(2, 4))
        trial.check(optimizer.__name__)


def _no_memory(travel: Any) -> None:
    raise torch.OutOfMemoryError("no memory")


def _gather_badly(sharded: ZeroRedundancyOptimizer, is_failing: bool) -> None:
    """Pieces of a rank that fails have other sizes, so that it cannot make its shard."""
    if sharded.partition == "parameters":
        sharded.consolidate_state_dict(to=1)
        return
    engine = sharded._engine
    pieces = [torch.ones(p.elements + is_failing, dtype=torch.float32) for p in engine.pieces(0)]
    engine.gather(0, pieces, 1)


@pytest.mark.parametrize("backend", DEVICES[::2])
def test_a_state_is_gathered_on_the_cpu_or_nowhere(backend: str) -> None:
    ranks.run(_short, 2, setup=ranks.Setup(backend=backend))


def _frugal(rank: int, world_size: int) -> None:
    """One array of one bucket is on the device at a time."""
    for partition in ("elements", "parameters"):
        for optimizer in (optim.AdamW, optim.RMSprop):
            options = {"amsgrad": True} if optimizer is optim.AdamW else {"centered": True}
            model = nn.ParameterList([torch.ones(1 << 18) for _ in range(4)])
            sharded = ZeroRedundancyOptimizer(
                model.parameters(), optimizer, partition=partition, **options
            )
            for p in model:
                p.grad = torch.ones_like(p)
            sharded.step()
            sim.synchronize()
            before = torch.accelerator.memory_allocated()
            with Watch() as watch:
                sharded.consolidate_state_dict(to=1)
            assert watch.most > before  # 4 MiB at a time, beside this rank's part
            assert watch.most - before < 3 * (4 << 20), f"{partition} {watch.most - before}"


def test_gathering_needs_little_memory_of_the_device() -> None:
    ranks.run(_frugal, 2, setup=ranks.Setup(backend="sim-eager"))


def _moves(rank: int, world_size: int) -> None:
    """A module that goes to another device takes its state along."""
    for optimizer, options in WHOLE:
        shapes = [((33, 17), torch.float32), ((), torch.float64)]
        trial = Trial(Bowl(shapes), optimizer, ddp=False, lr=0.01, **options)
        trial.train(range(2))
        device = torch.device("sim", rank + world_size)
        torch.set_default_device(device)
        sim.set_device(device.index)
        trial.model.to(device)
        trial.sharded.rebuild()
        own = trial.sharded._stepper.optimizer.state if optimizer is not optim.AdamW else {}
        for state in own.values():
            for name, value in state.items():
                for tensor in _tensors_in(value):
                    assert tensor.device == device, name
        trial.train(range(2, 5))
        trial.check(optimizer.__name__)
        torch.set_default_device(torch.device("sim", rank))
        sim.set_device(rank)


@pytest.mark.parametrize("backend", DEVICES[::2])
def test_a_state_moves_with_its_module(backend: str) -> None:
    ranks.run(_moves, 1, setup=ranks.Setup(backend=backend))


def _stayed_behind(rank: int, world_size: int) -> None:
    """One rank has forgotten to move its model."""
    own = nn.Parameter(torch.ones(3, device="cpu" if rank == 1 else None))
    with pytest.raises(farandole.InvalidArgument, match="ranks 0 and 1 in group"):
        ZeroRedundancyOptimizer([own], optim.SGD)


def test_a_rank_on_the_cpu_is_named() -> None:
    ranks.run(_stayed_behind, 3, setup=ranks.Setup(backend="sim-eager"))


def _refused(rank: int, world_size: int) -> None:
    own = nn.Parameter(torch.ones(3))
    host = nn.Parameter(torch.ones(3, device="cpu"))
    with pytest.raises(farandole.InvalidArgument, match="on sim:0 and on cpu"):
        ZeroRedundancyOptimizer([own, host], optim.SGD)
    optimizer = ZeroRedundancyOptimizer([own], optim.SGD)
    with pytest.raises(farandole.InvalidArgument, match="on sim:0 and on cpu"):
        optimizer.add_param_group({"params": [host]})
    with pytest.raises(farandole.NotSupported, match="shard_over"):
        ZeroRedundancyOptimizer([own], optim.SGD, shard_over="host")
    own.grad = torch.ones(3)
    optimizer.step()
    assert own.detach().cpu().tolist() == pytest.approx([1 - 1e-3] * 3)


def test_what_cannot_be_on_an_accelerator_is_told() -> None:
    ranks.run(_refused, 1, setup=ranks.Setup(backend="sim-eager"))


def _other_streams(rank: int, world_size: int) -> None:
    """Clips, steps and rebuilds run on streams of their own, each ordered behind the one before."""
    torch.set_default_device("cpu")
    device = torch.device("sim", rank)
    main, side = torch.Stream(device), torch.Stream(device)
    for gradients in ("full", "shard"):
        for optimizer, options in CASES[:-1]:
            model = DistributedDataParallel(_model().to(device))
            sharded = ZeroRedundancyOptimizer(
                model.parameters(), optimizer, gradients=gradients, **options
            )
            inputs = torch.randn(4, 7).to(device)
            for _ in range(3):
                sharded.zero_grad()
                model(inputs).square().mean().backward()
                main.wait_stream(torch.sim.current_stream())
                with main:
                    sharded.clip_grad_norm_(0.5)
                side.wait_stream(main)
                with side:
                    sharded.step()
                torch.sim.current_stream().wait_stream(side)
            sharded.rebuild()


@pytest.mark.parametrize("backend", DEVICES)
def test_calls_may_be_on_different_streams(backend: str) -> None:
    ranks.run(_other_streams, 2, setup=ranks.Setup(backend=backend))
