# SPDX-License-Identifier: Apache-2.0
"""What farandole.DistributedDataParallel says when something is wrong, and how it goes on."""

from __future__ import annotations

import contextlib
import copy
import logging
import threading
import time
import warnings
from collections.abc import Callable
from datetime import timedelta
from functools import partial
from pathlib import Path

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole import BackwardError, DistributedDataParallel, InvalidArgument
from torch import Tensor, nn

import ranks
import sim
from ddp_models import Experts, Layers
from ddp_oracle import assert_alike, assert_gradients, batch, expected, seeded


def square(output: Tensor) -> Tensor:
    return output.square().mean()


class Failing(nn.Module):
    """Raises in forward or in backward when it is told to."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Linear(8, 8)
        self.last = nn.Linear(8, 3)
        self.fails_in = ""

    def forward(self, x: Tensor) -> Tensor:
        hidden = self.first(x)
        if self.fails_in == "forward":
            raise KeyError("forward")
        if self.fails_in == "backward":
            hidden.register_hook(self.fail)
        return self.last(hidden)

    def fail(self, gradient: Tensor) -> None:
        raise KeyError("backward")


def plain_loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return square(model(batch(rank, step, 4, 8)))


def goes_on_after_an_exception(where: str, rank: int, world_size: int) -> None:
    """Rank 1 fails in step 2, skips the batch and goes on; nobody hangs."""
    model = seeded(Failing)
    ddp = DistributedDataParallel(model)
    outcome = []
    for step in range(6):
        model.fails_in = where if (rank, step) == (1, 2) else ""
        wanted = expected(model, world_size, plain_loss, step) if step not in (2, 3) else {}
        ddp.zero_grad()
        try:
            plain_loss(ddp, rank, step).backward()
        except KeyError:
            outcome.append("own")
        except BackwardError as error:
            outcome.append("peer" if "rank 1" in str(error) else str(error))
        else:
            outcome.append("good")
            if wanted:
                assert_gradients(ddp, wanted)
    assert outcome[:2] == ["good", "good"]
    assert outcome[4:] == ["good", "good"], outcome
    assert outcome[2] == ("own" if rank == 1 else "peer"), outcome


def parameters_are_replaced_after_an_exception(rank: int, world_size: int) -> None:
    """Before the rank that failed has told its peers."""
    model = seeded(Failing)
    ddp = DistributedDataParallel(model)
    for step in range(0, 6, 2):
        model.fails_in = "backward" if rank == 1 else ""
        with pytest.raises(KeyError if rank == 1 else BackwardError):
            plain_loss(ddp, rank, step).backward()
        model.fails_in = ""
        ddp.load_state_dict({k: v.clone() for k, v in ddp.state_dict().items()}, assign=True)
        wanted = expected(model, world_size, plain_loss, step + 1)
        plain_loss(ddp, rank, step + 1).backward()
        assert_gradients(ddp, wanted)


def exceptions(rank: int, world_size: int) -> None:
    parameters_are_replaced_after_an_exception(rank, world_size)
    goes_on_after_an_exception("backward", rank, world_size)


@pytest.mark.parametrize("backend", ["farandole", "hosts", "gloo", *sim.backends("slow_side")])
def test_an_exception_in_backward_is_told_to_the_others(backend: str) -> None:
    ranks.run(exceptions, 2, setup=ranks.Setup(backend=backend))


def exception_in_forward(rank: int, world_size: int) -> None:
    model = seeded(Failing)
    ddp = DistributedDataParallel(model)
    outcome = []
    step = 0
    while step < 7:
        model.fails_in = "forward" if (rank, len(outcome)) == (1, 2) else ""
        ddp.zero_grad()
        try:
            plain_loss(ddp, rank, step).backward()
        except KeyError:
            outcome.append("own")
        except BackwardError as error:
            outcome.append("told" if "rank 1 skipped one" in str(error) else str(error))
        else:
            outcome.append("good")
        step += outcome[-1] != "own"  # it goes on with another batch
    assert outcome.count("told") == 1, outcome
    assert outcome[-1] == "good"


def test_an_exception_in_forward_is_told_to_the_others() -> None:
    ranks.run(exception_in_forward, 2)


def refused_tensors(rank: int, world_size: int) -> None:
    """Every rank raises, whichever ranks have a module that cannot be sent."""

    def expanded() -> nn.Module:
        model = nn.Linear(4, 4)
        model.register_buffer("mask", torch.zeros(1).expand(5))
        return model

    def made_in_inference_mode() -> nn.Module:
        with torch.inference_mode():
            mask = torch.zeros(2)
        model = nn.Linear(4, 4)
        model.register_buffer("mask", mask)
        return model

    def sparse() -> nn.Module:
        model = nn.Linear(4, 4)
        model.register_buffer("mask", torch.zeros(2).to_sparse())
        return model

    for make, text in (
        (expanded, "'mask', some elements of which share memory"),
        (made_in_inference_mode, "'mask', which was made in inference mode"),
        (sparse, "'mask', which has the layout Sparse"),
        (lambda: nn.Linear(4, 4, device="meta"), "meta device: parameter 'weight'"),
    ):
        with pytest.raises(farandole.Error, match=text):
            DistributedDataParallel(make())
        with pytest.raises(farandole.Error, match=text) as error:
            DistributedDataParallel(make() if rank == 1 else nn.Linear(4, 4), init_sync=False)
        assert rank == 1 or "rank 1 of group" in str(error.value)
    DistributedDataParallel(expanded(), broadcast_buffers=False)
    ddp = DistributedDataParallel(nn.Linear(4, 4))
    ddp.module.register_buffer("late", torch.zeros(1).expand(5))
    with pytest.raises(InvalidArgument, match="'late', some elements"):
        ddp(torch.ones(1, 4))
    ddp.module.late = torch.zeros(5)
    square(ddp(torch.ones(1, 4))).backward()


def two_forwards_with_batch_norm(rank: int, world_size: int) -> None:
    """Every rank gets torch's error, after a warning that names the option."""
    for sends in (True, False):
        ddp = DistributedDataParallel(
            seeded(lambda: nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4))),
            broadcast_buffers=sends,
        )
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            for step in range(2):
                square(ddp(batch(rank, step, 4, 4))).backward()
            assert caught == []
            loss = square(ddp(batch(rank, 0, 4, 4))) + square(ddp(batch(rank, 1, 4, 4)))
        assert ["broadcast_buffers=False" in str(each.message) for each in caught] == [True] * sends
        if sends:
            with pytest.raises(RuntimeError, match="modified by an inplace operation"):
                loss.backward()
        else:
            loss.backward()
        ddp.zero_grad()
        square(ddp(batch(rank, 0, 4, 4))).backward()


def a_regularizer_alone(rank: int, world_size: int) -> None:
    """Its backward does not count as that of the forward: the next forward refuses that."""
    ddp = DistributedDataParallel(seeded(Layers))
    alone = copy.deepcopy(ddp.module)

    def regularizer(model: nn.Module) -> Tensor:
        return torch.stack([each.square().sum() for each in model.parameters()]).sum()

    for step in range(3):
        ddp.zero_grad()
        output = ddp(batch(rank, step, 4, 8))
        regularizer(ddp).backward()
        square(output).backward()
        wanted = expected(
            alone,
            world_size,
            lambda model, r, s: regularizer(model) + square(model(batch(r, s, 4, 8))),
            step,
        )
        assert_gradients(ddp, wanted)
    ddp.zero_grad()
    ddp(batch(rank, 0, 4, 8))
    regularizer(ddp).backward()
    with pytest.raises(InvalidArgument, match="gradients-not-averaged"):
        ddp(batch(rank, 0, 4, 8))
    ddp.zero_grad()
    square(ddp(batch(rank, 0, 4, 8))).backward()


class Lines(logging.Handler):
    """What Farandole logs meanwhile."""

    def __init__(self) -> None:
        super().__init__()
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.lines.append(record.getMessage())

    def __enter__(self) -> list[str]:
        logging.getLogger("farandole").addHandler(self)
        return self.lines

    def __exit__(self, *_: object) -> None:
        logging.getLogger("farandole").removeHandler(self)


def gradients_outside_of_forwards(rank: int, world_size: int) -> None:
    """A module that is called without its wrapper is averaged nowhere, which one warning says."""
    with Lines() as lines:
        ddp = DistributedDataParallel(seeded(Layers))
        for step in range(3):
            with ddp.no_sync():
                plain_loss(ddp, rank, step).backward()
            plain_loss(ddp, rank, step).backward()
        keeping = DistributedDataParallel(seeded(Keeping), find_unused_parameters=True)
        for synchronizes in (True, False, True):
            keeping.require_backward_grad_sync = synchronizes
            keeping(batch(rank, 0, 4, 8))
            keeping.module.loss.backward()
        assert lines == []
        for step in range(3):
            plain_loss(ddp.module, rank, step).backward()
    (line,) = lines
    assert "got a gradient on rank" in line
    assert "Call the wrapper" in line


def optimizers_in_hooks(rank: int, world_size: int) -> None:
    """They step with gradients of their rank, which one warning says."""
    with Lines() as lines:
        ddp = DistributedDataParallel(seeded(Layers))
        optimizer = torch.optim.SGD(ddp.parameters(), lr=0.1)
        for step in range(3):
            optimizer.zero_grad()
            plain_loss(ddp, rank, step).backward()
            optimizer.step()
        for parameter in ddp.parameters():
            own = torch.optim.SGD([parameter], lr=0.1)
            parameter.register_post_accumulate_grad_hook(lambda _, own=own: own.step())
        assert lines == []
        for step in range(3):
            plain_loss(ddp, rank, step).backward()
    (line,) = lines
    assert f"was changed on rank {rank} within the backward pass" in line
    assert "Step the optimizer after backward()" in line


def unused_parameters(rank: int, world_size: int) -> None:
    model = seeded(Experts)
    ddp = DistributedDataParallel(model)
    texts = []
    for step in range(3):
        with pytest.raises(BackwardError) as error:
            square(ddp(batch(rank, step, 4, 8), min(rank, 1)).mixed).backward()
        texts.append(str(error.value))
    for number, text in enumerate(texts):
        assert f"backward #{number + 1} " in text
        assert f"on rank {rank} of {world_size}" in text
        assert "'experts.3.bias' on every rank" in text
        assert "'experts.0.weight' on rank" in text
        assert "'experts.1.weight' on rank 0" in text
        assert "find_unused_parameters=True" in text
    ddp.zero_grad()
    loss = sum(
        (square(ddp.module.experts[i](batch(rank, i, 4, 8))) for i in range(4)),
        ddp(batch(rank, 0, 4, 8), 0).balance,
    )
    loss.backward()  # all are used: good again


@pytest.mark.parametrize(("backend", "world_size"), [("farandole", 3), ("hosts", 3), ("gloo", 2)])
def test_unused_parameters_are_named_on_every_rank(backend: str, world_size: int) -> None:
    ranks.run(unused_parameters, world_size, setup=ranks.Setup(backend=backend))


def different_modules(rank: int, world_size: int) -> None:
    with pytest.raises(InvalidArgument, match="different modules: rank 0 has parameter 'weight'"):
        DistributedDataParallel(nn.Linear(4, 2 + rank))


def changed_modules(rank: int, world_size: int) -> None:
    ddp = DistributedDataParallel(Layers())
    ddp.module.add_module("more", nn.Linear(3, 3))
    for _ in range(2):
        with pytest.raises(InvalidArgument, match=r"more\.bias, more\.weight[\s\S]*wrap it again"):
            ddp(torch.ones(1, 8))
    del ddp.module.more
    square(ddp(torch.ones(1, 8))).backward()
    ddp.module[0].register_parameter("scale", nn.Parameter(torch.ones(1)))
    with pytest.raises(InvalidArgument, match=r"removed[\s\S]*scale"):
        ddp(torch.ones(1, 8))
    ddp = DistributedDataParallel(ddp.module, find_unused_parameters=True)
    square(ddp(torch.ones(1, 8))).backward()


def different_options(rank: int, world_size: int) -> None:
    ddp = DistributedDataParallel(Layers(), bucket_cap_mb=0.0001 * (1 + 20 * rank))
    with pytest.raises(BackwardError, match="do not match"):
        square(ddp(torch.ones(1, 8))).backward()


def some_weights(rank: int, world_size: int) -> None:
    ddp = DistributedDataParallel(Layers())
    if rank == 1:
        ddp.set_loss_weight(3)
    with pytest.raises(BackwardError, match="only rank 1 gave the loss a weight"):
        square(ddp(torch.ones(1, 8))).backward()
    ddp.zero_grad()
    ddp.set_loss_weight(2)
    square(ddp(torch.ones(1, 8))).backward()


def weights_beside_other_gradients(rank: int, world_size: int) -> None:
    """An average that was not zeroed has no weight."""
    ddp = DistributedDataParallel(seeded(Layers))
    ddp.set_loss_weight(2)
    for set_to_none in (True, False):
        plain_loss(ddp, rank, 0).backward()
        with pytest.raises(InvalidArgument, match="with a weight was to be added to gradients"):
            plain_loss(ddp, rank, 1).backward()
        wanted = expected(ddp.module, world_size, plain_loss, 2)
        ddp.zero_grad(set_to_none)
        plain_loss(ddp, rank, 2).backward()
        assert_gradients(ddp, wanted)
        ddp.zero_grad(set_to_none)


class Keeping(nn.Module):
    """Keeps its loss, and returns something that has no part in it."""

    def __init__(self) -> None:
        super().__init__()
        self.layers, self.other = Layers(), nn.Linear(8, 3)
        self.loss = torch.zeros(())

    def forward(self, x: Tensor) -> Tensor:
        self.loss = square(self.layers(x))
        return self.other(x)


def losses_that_are_not_returned(rank: int, world_size: int) -> None:
    ddp = DistributedDataParallel(seeded(Keeping))
    for step in range(3):
        ddp(batch(rank, step, 4, 8))
        with pytest.raises(BackwardError, match=r"no gradient: 'other\.weight' on every rank"):
            ddp.module.loss.backward()
        ddp.zero_grad()
        output = ddp(batch(rank, step, 4, 8))
        (square(output) + ddp.module.loss).backward()
        for parameter in ddp.parameters():
            assert parameter.grad is not None
            assert_alike(parameter.grad)


def arguments(rank: int, world_size: int) -> None:
    layers = Layers()
    cases: list[tuple[str, Callable[[], object]]] = [
        ("no gradients to average", lambda: DistributedDataParallel(nn.ReLU())),
        (
            "no gradients to average",
            lambda: DistributedDataParallel(Layers().requires_grad_(False)),
        ),
        ("one process for each device", lambda: DistributedDataParallel(layers, [0, 1])),
        ("for a module on cpu", lambda: DistributedDataParallel(layers, [0])),
        ("for a module on cpu", lambda: DistributedDataParallel(layers, output_device=0)),
        ("uninitialized", lambda: DistributedDataParallel(nn.LazyLinear(3))),
        (
            "pass both",
            lambda: DistributedDataParallel(layers, param_to_hook_all_reduce=layers[0].weight),
        ),
        ("bucket_cap_mb got -1", lambda: DistributedDataParallel(layers, bucket_cap_mb=-1)),
        (
            "on cpu and meta",
            lambda: DistributedDataParallel(
                nn.ModuleList([layers, nn.Linear(1, 1, device="meta")])
            ),
        ),
    ]
    for text, make in cases:
        with pytest.raises(InvalidArgument, match=text) as error:
            make()
        assert isinstance(error.value, (ValueError, RuntimeError))  # what torch raises
    with pytest.raises(InvalidArgument, match="both process_group and device_mesh"):
        DistributedDataParallel(layers, process_group=dist.group.WORLD, device_mesh=object())
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        DistributedDataParallel(
            layers,
            check_reduction=True,
            gradient_as_bucket_view=True,
            batched_grad_copy=True,
            lazy_bucket_allocation=True,
        )
        DistributedDataParallel(layers, broadcast_buffers=True, forward_sync_buffers=False)
    (warning,) = caught
    for name in ("check_reduction", "gradient_as_bucket_view", "batched_grad_copy"):
        assert f"{name} (" in str(warning.message)
    assert warning.filename == __file__


CHECKS = [
    different_modules,
    refused_tensors,
    changed_modules,
    different_options,
    some_weights,
    weights_beside_other_gradients,
    losses_that_are_not_returned,
    arguments,
    two_forwards_with_batch_norm,
    a_regularizer_alone,
    gradients_outside_of_forwards,
    optimizers_in_hooks,
]


def misuse(rank: int, world_size: int) -> None:
    for check in CHECKS:
        check(rank, world_size)


def test_misuse_is_told() -> None:
    ranks.run(misuse, 2)


def test_there_must_be_a_group() -> None:
    with pytest.raises(InvalidArgument, match="no default group"):
        DistributedDataParallel(nn.Linear(1, 1))


def first_call_of_a_thread(rank: int, slow: float) -> None:
    """Rank 0 learns, and a thread of it receives; rank 1 acts and does both in turn."""
    weights, data = dist.new_group([0, 1]), dist.new_group([0, 1])

    def receive() -> None:
        time.sleep(slow)
        dist.all_reduce(torch.ones(1), group=data)

    dist.broadcast(torch.ones(1), 0, group=weights)
    if rank == 0:
        thread = threading.Thread(target=receive)
        thread.start()
        dist.broadcast(torch.ones(1), 0, group=weights)
        thread.join()
    else:
        dist.all_reduce(torch.ones(1), group=data)
        dist.broadcast(torch.ones(1), 0, group=weights)


def groups_at_different_paces(rank: int, world_size: int) -> None:
    """Ranks wait for each other in two groups, and none is in the way of another."""
    ddp, beside = DistributedDataParallel(Layers()), dist.new_group([0, 1])
    slow = 2.5  # longer than ranks look on before they give up

    def other_thread() -> None:
        for step in range(2):
            time.sleep(slow if rank == 0 and step == 1 else 0)
            dist.all_reduce(torch.ones(1), group=beside)

    thread = threading.Thread(target=other_thread)
    thread.start()
    for step in range(2):
        time.sleep(slow if rank == 1 and step == 1 else 0)
        square(ddp(torch.ones(1, 8))).backward()
    thread.join()

    first_call_of_a_thread(rank, slow)

    first, second = dist.new_group([0, 1]), dist.new_group([0, 1])
    for _ in range(2):
        if rank == 0:
            time.sleep(slow)
            dist.barrier(first)
            dist.barrier(second)
        else:
            work = dist.barrier(first, async_op=True)
            dist.barrier(second)
            work.wait()
    calls_that_nobody_waits_for_yet(rank, first, second, slow)


def calls_that_nobody_waits_for_yet(
    rank: int, first: dist.ProcessGroup, second: dist.ProcessGroup, slow: float
) -> None:
    """Rank 1 is in a collective of one group, but can still enter that of the other."""
    if rank == 0:
        dist.barrier(second)
        dist.barrier(first)
    else:
        work = dist.barrier(first, async_op=True)
        time.sleep(slow)
        dist.barrier(second)
        work.wait()
    if rank == 0:
        dist.barrier(second)
        dist.barrier(first)
    else:
        work = dist.barrier(first, async_op=True)
        end = time.monotonic() + slow
        while time.monotonic() < end:
            with contextlib.suppress(farandole.TimeoutError):
                work.wait(timedelta(milliseconds=200))
        dist.barrier(second)
        work.wait()
    if rank == 0:
        dist.barrier(second)
        dist.barrier(first)
    else:  # a thread that starts late makes the call that is missing
        work = dist.barrier(first, async_op=True)
        time.sleep(0.5)
        thread = threading.Thread(target=_after, args=(slow, partial(dist.barrier, second)))
        thread.start()
        work.wait()
        thread.join()


def _after(seconds: float, call: Callable[[], object]) -> None:
    time.sleep(seconds)
    call()


def one_batch_less(rank: int, world_size: int, operation: str) -> str:
    """Rank 1 leaves the loop one batch early and goes on to a collective of another group."""
    if operation == "barrier":  # the default group has not been used then
        groups_at_different_paces(rank, world_size)
    else:
        dist.all_reduce(torch.ones(1))
    ddp = DistributedDataParallel(Layers())
    for _ in range(2):
        square(ddp(torch.ones(1, 8))).backward()
    if rank == 0:
        last = square(ddp(torch.ones(1, 8))).backward
    elif operation == "barrier":
        last = dist.barrier
    elif operation == "all_reduce":
        last = partial(dist.all_reduce, torch.ones(1))
    elif operation == "caught, all_reduce":  # an exception leaves the backward of rank 1
        with contextlib.suppress(ZeroDivisionError):
            output = ddp(torch.ones(1, 8))
            output.register_hook(lambda gradient: 1 // 0)
            square(output).backward()
        last = partial(dist.all_reduce, torch.ones(1))
    else:
        last = dist.all_reduce(torch.ones(1), async_op=True).wait
    with pytest.raises(farandole.CommError) as error:
        last()
    assert type(error.value) is farandole.CommError
    return str(error.value)


FORMATIONS: dict[str, Callable[[Path], object]] = {
    "new_group()": lambda _: dist.new_group([0, 1]),
    "save_checkpoint()": lambda path: farandole.save_checkpoint(path),
    "DistributedDataParallel()": lambda _: DistributedDataParallel(nn.Linear(2, 2)),
}


def one_batch_less_before_a_group(rank: int, world_size: int, call: str, path: str) -> str:
    """Rank 1 leaves the loop one batch early and goes on to a function that makes a group."""
    ddp = DistributedDataParallel(Layers())
    for _ in range(2):
        square(ddp(torch.ones(1, 8))).backward()
    if rank == 0:
        last = square(ddp(torch.ones(1, 8))).backward
    else:
        last = partial(FORMATIONS[call], Path(path))
    with pytest.raises(farandole.CommError) as error:
        last()
    assert type(error.value) is farandole.CommError, error.value
    return str(error.value)


@pytest.mark.parametrize("backend", ["farandole", "hosts"])
@pytest.mark.parametrize("call", FORMATIONS)
def test_ranks_of_which_one_makes_a_group_are_told(call: str, backend: str, tmp_path: Path) -> None:
    setup = ranks.Setup(backend=backend)
    texts = ranks.run(
        one_batch_less_before_a_group, 2, call, str(tmp_path / "checkpoint"), setup=setup
    )
    for rank, text in enumerate(texts):
        assert "wait for each other" in text, text
        assert f"rank {1 - rank} (pid" in text
        assert "group 'default/ddp'" in text
    assert f"{call} on rank 1 of 2" in texts[1]
    assert "a call that forms a group" in texts[0]


def group_beside_a_thread(rank: int, world_size: int) -> None:
    """Rank 0 waits for rank 1 in a formation; a thread of it makes the call that rank 1 is in."""
    both = dist.new_group([0, 1])
    dist.barrier(both)
    if rank == 0:
        thread = threading.Thread(target=_after, args=(2.5, partial(dist.barrier, both)))
        thread.start()
        dist.new_group([0, 1])
        thread.join()
    else:
        dist.barrier(both)
        dist.new_group([0, 1])
    # A group of all ranks that has been left is no sign that a rank will not join another one.
    if rank == 1:
        dist.destroy_process_group(both)
        time.sleep(0.5)
    third = dist.new_group([0, 1])
    if rank == 0:
        dist.destroy_process_group(both)
    dist.barrier(third)


@pytest.mark.parametrize("backend", ["farandole", "hosts"])
def test_a_group_may_form_while_a_rank_is_in_a_collective(backend: str) -> None:
    ranks.run(group_beside_a_thread, 2, setup=ranks.Setup(backend=backend))


@pytest.mark.parametrize("backend", ["farandole", "hosts"])
@pytest.mark.parametrize(
    "operation", ["barrier", "all_reduce", "caught, all_reduce", "asynchronous all_reduce"]
)
def test_ranks_that_wait_for_each_other_in_two_groups_are_told(
    operation: str, backend: str
) -> None:
    texts = ranks.run(one_batch_less, 2, operation, setup=ranks.Setup(backend=backend))
    for rank, text in enumerate(texts):
        assert "wait for each other" in text, text
        assert f"rank {1 - rank} (pid" in text
        assert "in group 'default'" in text
        assert "group 'default/ddp'" in text
        assert operation.split()[-1] in text
        assert "drop_last=True" in text
        assert "join()" in text


def dead_peer(rank: int, world_size: int) -> None:
    import os

    ddp = DistributedDataParallel(Layers())
    for step in range(3):
        if (rank, step) == (1, 2):
            os._exit(0)
        if step < 2:
            square(ddp(torch.ones(1, 8))).backward()
            continue
        with pytest.raises(farandole.PeerFailure, match="rank 1"):
            square(ddp(torch.ones(1, 8))).backward()
        ddp.set_process_group(farandole.shrink_group([1]))
        ddp.zero_grad()
        square(ddp(torch.ones(1, 8))).backward()
        assert ddp.process_group.size() == 1


def test_training_goes_on_after_a_death() -> None:
    ranks.run(dead_peer, 2, may_die=[1])
