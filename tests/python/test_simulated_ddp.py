# SPDX-License-Identifier: Apache-2.0
"""farandole.DistributedDataParallel on the simulated accelerator: streams and waits of the host.

Whether gradients are right there is what the other tests of DistributedDataParallel check, for
which the device is one more parameter.
"""

from __future__ import annotations

import copy
import time
from collections.abc import Callable
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.autograd import Variable
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks

import ranks
import sim
from ddp_models import Convolutional, Experts, Layers
from ddp_oracle import assert_gradients, batch, expected, gradients, seeded

pytestmark = sim.NEEDS_NCCL


def square(output: Tensor) -> Tensor:
    return output.square().mean()


def wrapped(make: Callable[[], nn.Module] = Layers, **options: Any) -> nn.Module:
    return farandole.DistributedDataParallel(seeded(make), **options)


def waits_of(step: Callable[[int], object]) -> list[str]:
    """The operators for which the host waits once memory has been planned."""
    for i in range(3):
        step(i)
    sim.let_go()
    sim.take_waiting_operators()
    before = sim.host_waits()
    for i in range(3, 6):
        step(i)
    waited = sim.take_waiting_operators()
    assert len(waited) > 0 or sim.host_waits() == before
    return waited


def check_waits(rank: int, world_size: int) -> None:
    """A step makes the host wait for nothing, whatever the options."""
    # Numbers come to the device before: that is a wait of the program.
    pictures = [batch(rank, i, 4, 3 * 8 * 8) for i in range(6)]
    rows = [batch(rank, i, 4, 8) for i in range(6)]

    def steps_of(ddp: Any, inputs: list[Tensor], forward: Any = None) -> Callable[[int], None]:
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1, momentum=0.9)

        def step(i: int) -> None:
            optimizer.zero_grad()
            square(forward(ddp, inputs[i]) if forward else ddp(inputs[i])).backward()
            optimizer.step()

        return step

    assert waits_of(steps_of(wrapped(Convolutional), pictures)) == []
    assert waits_of(steps_of(wrapped(static_graph=True, bucket_cap_mb=0.0005), rows)) == []
    assert waits_of(steps_of(wrapped(wire_dtype="bfloat16"), rows)) == []
    experts = wrapped(Experts, find_unused_parameters=True)
    assert waits_of(steps_of(experts, rows, lambda ddp, x: ddp(x, 1).mixed)) == []
    skipping = wrapped(Experts, find_unused_parameters=True, skip_all_reduce_unused_params=True)
    assert waits_of(steps_of(skipping, rows, lambda ddp, x: ddp(x, 1).mixed)) == []

    weighted = wrapped()

    def weighted_forward(ddp: Any, x: Tensor) -> Tensor:
        ddp.set_loss_weight(rank + 1)
        return ddp(x)

    assert waits_of(steps_of(weighted, rows, weighted_forward)) == []

    hooked = wrapped()
    hooked.register_comm_hook(None, default_hooks.bf16_compress_hook)  # type: ignore[operator]
    assert waits_of(steps_of(hooked, rows)) == []

    ddp = wrapped()

    def accumulate(i: int) -> None:
        ddp.zero_grad(set_to_none=i % 2 == 0)
        with ddp.no_sync():  # type: ignore[operator]
            square(ddp(rows[i])).backward()
        square(ddp(rows[i])).backward()

    assert waits_of(accumulate) == []


class Branches(nn.Module):
    """Features [N, 8]: two branches that run on streams of their own."""

    def __init__(self) -> None:
        super().__init__()
        self.parts = nn.ModuleList(nn.Sequential(nn.Linear(8, 6), nn.Tanh()) for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        if x.device.type == "cpu":
            return self.parts[0](x) + self.parts[1](x)
        current = torch.accelerator.current_stream()
        outputs = []
        for part, stream in zip(self.parts, streams(), strict=True):
            stream.wait_stream(current)
            x.record_stream(stream)
            with stream:
                outputs.append(part(x))
        for output, stream in zip(outputs, streams(), strict=True):
            current.wait_stream(stream)
            output.record_stream(current)
        return outputs[0] + outputs[1]


_streams: list[torch.Stream] = []


def streams() -> list[torch.Stream]:
    while len(_streams) < 2:
        _streams.append(sim.Stream())
    return _streams


def on_own_streams(model: nn.Module) -> list[Any]:
    """Has the gradients of each branch arrive on its stream, as long as the result lives."""
    nodes = []
    for part, stream in zip(model.parts, streams(), strict=True):  # type: ignore[arg-type]
        with stream:
            nodes += [p.expand_as(p).grad_fn for p in part.parameters()]
    return nodes


def check_streams(rank: int, world_size: int) -> None:
    """A bucket has gradients of several streams, and waits for all."""
    model = seeded(Branches)
    nodes = on_own_streams(model)
    ddp = farandole.DistributedDataParallel(model)
    for step in range(4):
        on_host = copy.deepcopy(ddp.module).cpu()  # type: ignore[operator]
        found = expected(
            on_host, world_size, lambda model, r, s: square(model(batch(r, s, 4, 8).cpu())), step
        )
        wanted = {name: gradient.to(f"sim:{rank}") for name, gradient in found.items()}  # type: ignore[union-attr]
        ddp.zero_grad()
        square(ddp(batch(rank, step, 4, 8))).backward()
        assert_gradients(ddp, wanted)
    del nodes


def check_streams_and_hooks(rank: int, world_size: int) -> None:
    """A gradient that a hook wants to see at once does not copy others before they are there."""
    model = seeded(Branches)
    nodes = on_own_streams(model)
    ddp = farandole.DistributedDataParallel(model)
    for parameter in model.parts[0].parameters():  # type: ignore[index, union-attr]
        parameter.register_post_accumulate_grad_hook(lambda p: None)
    inputs = batch(rank, 0, 4, 8)
    wanted: dict[str, Tensor | None] = {}
    for step in range(4):
        ddp.zero_grad()
        square(ddp(inputs)).backward()
        found = gradients(ddp)
        if step > 0:
            for name, gradient in found.items():
                torch.testing.assert_close(gradient, wanted[name], rtol=1e-12, atol=0)
        wanted = found
    del nodes


def check_hooks_behind(rank: int, world_size: int) -> None:
    """Hooks of the program that run when a gradient has been added find it in p.grad."""
    ddp = wrapped()
    seen: dict[str, Tensor] = {}
    for name, parameter in ddp.module.named_parameters():  # type: ignore[union-attr]

        def note(p: Tensor, name: str = name) -> None:
            assert p.grad is not None
            seen[name] = p.grad.detach().clone()

        parameter.register_post_accumulate_grad_hook(note)
    for step in range(3):
        alone = copy.deepcopy(ddp.module)
        square(alone(batch(rank, step, 4, 8))).backward()  # type: ignore[operator]
        ddp.zero_grad()
        square(ddp(batch(rank, step, 4, 8))).backward()
        for name, gradient in gradients(alone).items():  # type: ignore[arg-type]
            torch.testing.assert_close(seen[name], gradient, rtol=1e-9, atol=1e-12)


def check_nonfinite(rank: int, world_size: int) -> None:
    """Hooks of torch's interface may lose a NaN: all ranks get it, without a wait of the host."""
    ddp = wrapped()

    def clears(state, bucket):  # type: ignore[no-untyped-def]
        cleared = torch.zeros_like(bucket.buffer())
        return dist.all_reduce(cleared, async_op=True).get_future().then(lambda f: f.value()[0])

    ddp.register_comm_hook(None, clears)  # type: ignore[operator]
    inputs = [batch(rank, i, 4, 8) for i in range(6)]

    def step(i: int) -> None:
        ddp.zero_grad()
        factor = float("nan") if rank == 1 and i == 5 else 1.0
        (square(ddp(inputs[i])) * factor).backward()

    assert waits_of(step) == []
    for parameter in ddp.parameters():
        assert parameter.grad is not None
        assert bool(parameter.grad.isnan().all())


class SlowEnd:
    """Destroyed with a graph task: keeps autograd's thread in it while the program goes on."""

    def __call__(self) -> None:
        pass

    def __del__(self) -> None:
        time.sleep(0.05)


def check_abandoned(rank: int, world_size: int, set_to_none: bool = True) -> None:
    """A backward that an exception leaves, then one that goes well."""
    ddp = wrapped(bucket_cap_mb=0.0005)

    def fail(gradient: Tensor) -> None:
        Variable._execution_engine.queue_callback(SlowEnd())
        raise ZeroDivisionError

    for step in range(4):
        ddp.zero_grad(set_to_none=set_to_none)
        loss = square(ddp(batch(rank, step, 4, 8)))
        if step == 2:
            if rank == 0:
                handle = next(ddp.parameters()).register_hook(fail)
                with pytest.raises(ZeroDivisionError):
                    loss.backward()
                handle.remove()
                continue
            with pytest.raises(farandole.BackwardError, match="rank 0"):
                loss.backward()
            continue
        loss.backward()
    wanted = expected(
        ddp.module, world_size, lambda model, r, s: square(model(batch(r, s, 4, 8))), 3
    )
    assert_gradients(ddp, wanted)


@pytest.mark.parametrize("schedule", sim.SCHEDULES)
def test_streams_and_waits(schedule: str) -> None:
    ranks.run(run_checks, 2, setup=ranks.Setup(backend="sim-" + schedule))


def run_checks(rank: int, world_size: int) -> None:
    for check in (
        check_waits,
        check_streams,
        check_streams_and_hooks,
        check_hooks_behind,
        check_nonfinite,
    ):
        check(rank, world_size)
    for _ in range(3):
        check_abandoned(rank, world_size)
    # The program's zeros race with all_reduces whose result nobody will see.
    sim.throw_races(False)
    for _ in range(3):
        check_abandoned(rank, world_size, set_to_none=False)
    sim.throw_races(True)
    assert all("'zero_'" in report and "'ncclAllReduce'" in report for report in sim.take_reports())
