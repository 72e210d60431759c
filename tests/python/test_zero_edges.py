# SPDX-License-Identifier: Apache-2.0
"""A sharded optimizer among all that programs do with models, optimizers and processes."""

from __future__ import annotations

import copy
import io
import os
import signal
import time
from collections.abc import Callable
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole import DistributedDataParallel, InvalidArgument, ZeroRedundancyOptimizer
from torch import Tensor, nn, optim
from torch.utils.checkpoint import checkpoint
from torch.utils.data import DataLoader, TensorDataset

import ranks
from zero_oracle import Bowl, Trial, assert_same_everywhere, check_parameters, loss

MODES = ["full", "shard"]
SMALL = [((7, 3), torch.float32), ((), torch.float32), ((65,), torch.float64)]


class Layers(nn.Module):
    """Whose backward needs the parameters."""

    def __init__(self, inputs: int = 16, reentrant: bool | None = None) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.first = nn.Linear(inputs, 32)
        self.inner = nn.Linear(32, 32)
        self.last = nn.Linear(32, 4)
        self.reentrant = reentrant

    def middle(self, x: Tensor) -> Tensor:
        return torch.tanh(self.inner(x))

    def forward(self, x: Tensor) -> Tensor:
        x = torch.tanh(self.first(x))
        if self.reentrant is None:
            x = self.middle(x)
        else:
            x = checkpoint(self.middle, x, use_reentrant=self.reentrant)
        return self.last(x)


def batch(rank: int, step: int, columns: int = 16) -> Tensor:
    return torch.randn(8, columns, generator=torch.Generator().manual_seed(100 * step + rank))


def error_of(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(batch(rank, step)).square().mean()


class Training:
    """Layers with a sharded optimizer, and the same alone."""

    def __init__(self, gradients: Any, make: Callable[[], nn.Module] = Layers) -> None:
        self.rank, self.world_size = dist.get_rank(), dist.get_world_size()
        self.model, self.alone = make(), make()
        self.ddp = DistributedDataParallel(self.model)
        self.sharded = ZeroRedundancyOptimizer(
            self.model.parameters(), optim.AdamW, gradients=gradients, lr=0.01
        )
        self.unsharded = optim.AdamW(self.alone.parameters(), lr=0.01)

    def step(self, step: int, forward: Any = None) -> None:
        self.sharded.zero_grad()
        self.unsharded.zero_grad()
        error_of(self.ddp if forward is None else forward, self.rank, step).backward()
        for rank in range(self.world_size):
            (error_of(self.alone, rank, step) / self.world_size).backward()
        self.sharded.step()
        self.unsharded.step()

    def check(self, text: str) -> None:
        self.sharded.wait()
        check_parameters(self.model, self.alone, text)
        assert_same_everywhere(self.model, text)


# What runs around the model.


def checkpointed_and_compiled(rank: int, world_size: int, gradients: str) -> None:
    for reentrant in (True, False):
        training = Training(gradients, lambda r=reentrant: Layers(reentrant=r))  # type: ignore[misc]
        for step in range(3):
            training.step(step)
        training.check(f"checkpoint, reentrant: {reentrant}")
    training = Training(gradients)
    compiled = torch.compile(training.ddp, backend="eager")
    for step in range(3):
        training.step(step, compiled)
    training.check("compiled")


def two_models(rank: int, world_size: int, gradients: Any) -> None:
    """Two optimizers over two DistributedDataParallels, one of which is in the other's loss."""
    nets = [Layers(), Layers(inputs=4), Layers(), Layers(inputs=4)]
    maker, judge = DistributedDataParallel(nets[0]), DistributedDataParallel(nets[1])
    sharded = [
        ZeroRedundancyOptimizer(net.parameters(), kind, gradients=gradients, lr=0.01)
        for net, kind in ((maker, optim.AdamW), (judge, optim.SGD))
    ]
    alone = [optim.AdamW(nets[2].parameters(), lr=0.01), optim.SGD(nets[3].parameters(), lr=0.01)]

    def judged(maker: nn.Module, judge: nn.Module, rank: int, step: int) -> Tensor:
        made = judge(maker(batch(rank, step)).detach()).square().mean()
        return made + (judge(batch(rank, step, 4)) - 1).square().mean()

    def fooled(maker: nn.Module, judge: nn.Module, rank: int, step: int) -> Tensor:
        return (judge(maker(batch(rank, step))) - 1).square().mean()

    for step in range(4):
        for number, goal in ((1, judged), (0, fooled)):
            sharded[number].zero_grad()
            goal(maker, judge, rank, step).backward()
            sharded[number].step()
            alone[number].zero_grad()
            for other in range(world_size):
                (goal(nets[2], nets[3], other, step) / world_size).backward()
            alone[number].step()
    for number in range(2):
        sharded[number].wait()
        check_parameters(nets[number], nets[number + 2], "two models")


def toggled(rank: int, world_size: int, gradients: str) -> None:
    """A layer that is trained in every other step."""
    training = Training(gradients)
    for step in range(6):
        for model in (training.model, training.alone):
            model.inner.requires_grad_(step % 2 == 0)  # type: ignore[union-attr, operator]
        if gradients == "shard" and dist.get_backend() == "gloo":
            training.sharded.rebuild()
        training.step(step)
    training.check("toggled")


def workers(rank: int, world_size: int, gradients: str) -> None:
    """Processes that are forked while parameters lie in memory of all ranks."""
    training = Training(gradients)
    data = DataLoader(
        TensorDataset(torch.ones(6, 16)),
        batch_size=2,
        num_workers=2,
        multiprocessing_context="fork",
    )
    for epoch in range(2):
        for _ in data:
            training.step(epoch)
    training.check("workers")


def second_backward(rank: int, world_size: int, gradients: str) -> None:
    """autograd knows that step() has changed what the graph kept."""
    training = Training(gradients)
    again = error_of(training.ddp, rank, 0)
    again.backward(retain_graph=True)
    training.sharded.step()
    with pytest.raises(RuntimeError, match="modified by an inplace operation"):
        again.backward()
    training.sharded.zero_grad()
    error_of(training.ddp, rank, 1).backward()
    training.sharded.step()
    training.sharded.wait()
    assert_same_everywhere(training.model)


AROUND = [checkpointed_and_compiled, two_models, toggled, workers, second_backward]


def run_around(rank: int, world_size: int, gradients: str) -> None:
    for check in AROUND:
        check(rank, world_size, gradients)


@pytest.mark.parametrize(
    ("backend", "gradients"), [("farandole", "full"), ("farandole", "shard"), ("gloo", "full")]
)
def test_what_programs_do_around_steps(backend: str, gradients: str) -> None:
    ranks.run(run_around, 2, gradients, setup=ranks.Setup(backend=backend))


# What happens to parameters and gradients.


def moved_and_copied(rank: int, world_size: int, gradients: str) -> None:
    training = Training(gradients)
    training.step(0)
    training.sharded.wait()
    parameters = list(training.model.parameters())
    homes = [p.data_ptr() for p in parameters]
    file = io.BytesIO()
    torch.save(training.model.state_dict(), file)
    assert file.tell() < sum(p.nbytes for p in parameters) + 4096  # not the buffer behind each
    apart = copy.deepcopy(training.model)
    training.step(1)
    training.check("after a copy")
    assert not any(map(torch.equal, apart.parameters(), parameters))
    for p, other in zip(parameters, training.alone.parameters(), strict=True):
        p.data = p.data + 1
        other.data += 1
    training.step(2)
    training.check("after other data")
    assert [p.data_ptr() for p in parameters] == homes
    training.model.share_memory()
    training.step(3)
    training.check("in memory of torch")
    assert all(p.is_shared() for p in parameters)


def gradients_of_all_sorts(rank: int, world_size: int, gradients: str) -> None:
    """p.grad that the program sets, and of a forward past the DistributedDataParallel."""
    for sets in (True, False):
        trial = Trial(Bowl(SMALL), optim.SGD, gradients=gradients, lr=0.1)
        trial.train(range(1))
        trial.zero_grad()
        trial.backward(1)
        before = [p.detach().clone() for p in trial.model.parameters()]
        if sets:
            for p in trial.model.parameters():
                # In full mode it is the average that all have; in shard mode each has its own.
                p.grad = torch.full_like(p, 1.0 + rank if gradients == "shard" else 1.5)
        else:
            trial.zero_grad()
            own = loss(trial.model, rank, 2)
            own.backward()
            if gradients == "full":
                for p in trial.model.parameters():
                    dist.all_reduce(p.grad, dist.ReduceOp.AVG)
        trial.sharded.step()
        if sets:
            for p, old in zip(trial.model.parameters(), before, strict=True):
                torch.testing.assert_close(p, old - 0.15)
        assert_same_everywhere(trial.model)
        trial.train(range(3, 5))
        assert_same_everywhere(trial.model)


def one_is_deleted(rank: int, world_size: int, gradients: Any) -> None:
    model = Bowl(SMALL)
    ddp = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(model.parameters(), optim.SGD, gradients=gradients)
    loss(ddp, rank, 0).backward()
    del ddp
    if gradients == "full":
        optimizer.step()
    else:
        with pytest.raises(InvalidArgument, match="DistributedDataParallel, which holds them"):
            optimizer.step()
    assert_same_everywhere(model)
    ddp = DistributedDataParallel(model)
    optimizer.rebuild()
    optimizer.zero_grad()
    loss(ddp, rank, 1).backward()
    optimizer.step()
    assert_same_everywhere(model)
    del optimizer
    model.zero_grad()
    loss(ddp, rank, 2).backward()  # averages again
    optim.SGD(model.parameters(), lr=0.1).step()
    assert_same_everywhere(model)


CHANGED = [moved_and_copied, gradients_of_all_sorts, one_is_deleted]


def run_changed(rank: int, world_size: int, gradients: str) -> None:
    for check in CHANGED:
        check(rank, world_size, gradients)


@pytest.mark.parametrize("gradients", MODES)
def test_what_programs_do_to_parameters(gradients: str) -> None:
    ranks.run(run_changed, 2, gradients)


# Ranks that die, stop, or go other ways.


class Ending(optim.SGD):
    """Ends its process in the middle of a step."""

    ends = False

    def step(self, closure: Any = None) -> None:
        super().step()
        if self.ends:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(rank: int, world_size: int, gradients: Any, in_the_middle: bool) -> float:
    model = Bowl(SMALL)
    ddp = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(
        model.parameters(), Ending, gradients=gradients, element_wise=True
    )
    loss(ddp, rank, 0).backward()
    optimizer.step()
    dist.barrier()
    begin = time.monotonic()
    Ending.ends = rank == 1 and in_the_middle

    def die() -> float:
        if rank == 1 and not in_the_middle:
            os.kill(os.getpid(), signal.SIGKILL)
        return 0.0

    # "ended", while its parent has not read its exit status: the kernel tells it later.
    with pytest.raises(farandole.CommError, match=r"rank 1 .*(was killed by signal 9|ended)"):
        optimizer.step(die)
    return time.monotonic() - begin


@pytest.mark.parametrize("gradients", MODES)
@pytest.mark.parametrize("in_the_middle", [False, True])
def test_a_killed_rank_is_named_within_a_second(gradients: str, in_the_middle: bool) -> None:
    seconds = ranks.run(killed, 3, gradients, in_the_middle, may_die=[1])
    assert max(seconds[0], seconds[2]) < ranks.load()


def stopped(rank: int, world_size: int, gradients: str) -> str:
    trial = Trial(Bowl(SMALL), optim.AdamW, gradients=gradients, lr=0.1)
    trial.train(range(2))
    pids: list[Any] = [None] * world_size
    dist.all_gather_object(pids, os.getpid())

    def stop() -> float:
        if rank == 1:
            os.kill(os.getpid(), signal.SIGSTOP)
        return 0.0

    try:
        with pytest.raises((farandole.TimeoutError, farandole.AbortedError)) as error:
            trial.sharded.step(stop)
    finally:
        os.kill(pids[1], signal.SIGCONT)
    return str(error.value)


def test_a_stopped_rank_is_named() -> None:
    texts = ranks.run(stopped, 2, "full", setup=ranks.Setup(timeout_s=1.5))
    assert "rank 1" in texts[0]
    assert "did not arrive" in texts[0]


def left_out(rank: int, world_size: int, gradients: str) -> None:
    """A rank that does not call step() once is told with the others, and all may go on."""
    trial = Trial(Bowl(SMALL), optim.AdamW, gradients=gradients, lr=0.1)
    trial.train(range(2))
    trial.zero_grad()
    trial.backward(2)
    with pytest.raises(farandole.MismatchError, match="rank 0 called all_gather"):  # noqa: PT012
        if rank != 1:
            trial.sharded.step()
        trial.backward(3)
        trial.sharded.step()
    trial.zero_grad()
    trial.backward(4)
    with pytest.raises(farandole.StepError, match="skipped a step"):
        trial.sharded.step()
    for step in range(5, 7):
        trial.zero_grad()
        trial.backward(step)
        trial.sharded.step()
    assert_same_everywhere(trial.model)


@pytest.mark.parametrize("gradients", MODES)
def test_a_step_that_one_rank_leaves_out(gradients: str) -> None:
    ranks.run(left_out, 2, gradients)
