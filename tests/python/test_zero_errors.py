# SPDX-License-Identifier: Apache-2.0
"""What farandole.ZeroRedundancyOptimizer says when something is wrong, and how it goes on."""

from __future__ import annotations

import copy
import logging
import os
import pickle
from collections.abc import Callable
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole import DistributedDataParallel, InvalidArgument, ZeroRedundancyOptimizer
from farandole.optim import LAMB
from torch import Tensor, nn, optim
from torch.distributed.algorithms.ddp_comm_hooks import ddp_zero_hook, default_hooks
from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZeroRedundancyOptimizer

import ranks
from zero_oracle import Bowl, Trial, assert_same_everywhere, loss, needs_devices

SMALL = [((7, 3), torch.float32), ((), torch.float32), ((65,), torch.float64)]
MODES = ["full", "shard"]


class Failing(optim.SGD):
    """Raises in its step when it is told to."""

    fails = False

    def step(self, closure: Any = None) -> None:
        super().step()
        if self.fails:
            raise KeyError("in the inner step")


class Signs(optim.Optimizer):
    """Element-wise, which nobody knows."""

    def __init__(self, params: Any, lr: float = 0.1) -> None:
        super().__init__(params, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None:
                    self.state[p]["last"] = p.grad.sign()
                    p.sub_(p.grad.sign(), alpha=group["lr"])


def raises_in_closure(rank: int, world_size: int, gradients: str) -> None:
    """Rank 1 raises; the others hear of it, and all go on."""
    for optimizer in (optim.AdamW, optim.RMSprop):
        trial = Trial(Bowl(SMALL), optimizer, gradients=gradients, ddp=False, lr=0.01)
        for step in range(4):
            trial.zero_grad()
            trial.backward(step)
            if step == 2:

                def closure() -> Tensor:
                    if rank == 1:
                        raise KeyError("in the closure")
                    return torch.zeros(())

                if rank == 1:
                    with pytest.raises(KeyError, match="in the closure"):
                        trial.sharded.step(closure)
                else:
                    with pytest.raises(farandole.StepError, match=r"rank 1[\s\S]*in the closure"):
                        trial.sharded.step(closure)
                assert_same_everywhere(trial.model)
            trial.step()
        trial.check(optimizer.__name__)


def raises_in_inner_step(rank: int, world_size: int, gradients: str) -> None:
    trial = Trial(Bowl(SMALL), optim.SGD, gradients=gradients, ddp=False, lr=0.1)
    failing = ZeroRedundancyOptimizer(
        trial.model.parameters(),
        Failing,
        gradients=gradients,  # type: ignore[arg-type]
        element_wise=True,
        lr=0.1,
    )
    trial.sharded = failing
    trial.train(range(2))
    trial.check("before")
    Failing.fails = rank == 1
    trial.zero_grad()
    trial.backward(2)
    if rank == 1:
        with pytest.raises(KeyError, match="in the inner step"):
            failing.step()
    else:
        with pytest.raises(farandole.StepError, match=r"rank 1[\s\S]*in the inner step"):
            failing.step()
    Failing.fails = False
    failing.wait()
    assert_same_everywhere(trial.model, "after a step that failed on one rank")
    failing.step()


def different_hyperparameters(rank: int, world_size: int, gradients: str) -> None:
    for optimizer in (optim.SGD, optim.RMSprop):
        trial = Trial(Bowl(SMALL), optimizer, gradients=gradients, ddp=False, lr=0.1)
        trial.train(range(2))
        trial.backward(2)
        trial.sharded.param_groups[0]["lr"] = 0.1 + rank
        with pytest.raises(farandole.StepError, match="lr="):
            trial.sharded.step()
        trial.sharded.param_groups[0]["lr"] = 0.1
        trial.step()
        trial.check(optimizer.__name__)


def different_gradients(rank: int, world_size: int, gradients: str) -> None:
    for optimizer in (optim.SGD, optim.RMSprop):
        trial = Trial(
            Bowl(SMALL),
            optimizer,
            gradients=gradients,
            ddp=False,
            groups=lambda model: model.named_parameters(),
        )
        model, sharded = trial.model, trial.sharded
        trial.backward(0)
        if rank == 1:
            model.weights[1].grad = None
        with pytest.raises(farandole.StepError, match=r"weights\.1"):
            sharded.step()
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        sharded.step()
        sharded.wait()
        assert_same_everywhere(model)


def sparse_on_one_rank_when_clipped(rank: int, world_size: int, gradients: str) -> None:
    trial = Trial(Bowl(SMALL), optim.AdamW, gradients=gradients)
    trial.train(range(2))
    trial.backward(2)
    weight = trial.model.weights[0]
    whole = weight.grad
    if rank == 1:
        weight.grad = torch.ones_like(weight).to_sparse()
        with pytest.raises(farandole.NotSupported, match="has a sparse gradient"):
            trial.sharded.clip_grad_norm_(1.0)
    else:
        with pytest.raises(farandole.StepError, match="failed on rank 1"):
            trial.sharded.clip_grad_norm_(1.0)
    weight.grad = whole
    trial.step()
    trial.check("after a clip that failed on one rank")


STEP_CHECKS = [
    sparse_on_one_rank_when_clipped,
    raises_in_closure,
    raises_in_inner_step,
    different_hyperparameters,
    different_gradients,
]


def step_errors(rank: int, world_size: int, gradients: str) -> None:
    has_sparse = torch.get_default_device().type == "cpu"  # the simulated device has none
    for check in STEP_CHECKS:
        if has_sparse or check is not sparse_on_one_rank_when_clipped:
            check(rank, world_size, gradients)


@pytest.mark.parametrize("gradients", MODES)
@pytest.mark.parametrize(
    ("backend", "world_size"),
    [
        *(("farandole", 3), ("hosts", 3), ("gloo", 2)),
        pytest.param("sim-lazy", 3, marks=needs_devices),
        pytest.param("sim-slow_side", 2, marks=needs_devices),
    ],
)
def test_what_one_rank_does_wrong_is_told_to_all(
    backend: str, world_size: int, gradients: str
) -> None:
    ranks.run(step_errors, world_size, gradients, setup=ranks.Setup(backend=backend))


def classes(rank: int, world_size: int) -> None:
    model = Bowl(SMALL)

    class MyLBFGS(optim.LBFGS):
        pass

    cases: list[tuple[Any, bool | None, str]] = [
        (optim.LBFGS, None, "dot products over all parameters"),
        (optim.SparseAdam, None, "sparse gradients"),
        (optim.LBFGS, True, "dot products over all parameters"),
        (MyLBFGS, None, r"cannot shard [\w.<>]*MyLBFGS[\s\S]*dot products"),
        (farandole.DistributedDataParallel, None, r"cannot shard Dist[\s\S]*it is not a torch"),
        (optim.SGD(model.parameters()), None, r"cannot shard SGD object\.\n"),
        ("AdamW", None, r"cannot shard 'AdamW'\.\n[\s\S]*a class, such as torch\.optim\.AdamW"),
        (lambda *_, **__: 3, None, r"cannot shard [\s\S]*made an int, not a torch.optim.Optimizer"),
    ]
    for optimizer, element_wise, text in cases:
        with pytest.raises(InvalidArgument, match=text):
            ZeroRedundancyOptimizer(model.parameters(), optimizer, element_wise=element_wise)
    trial = Trial(Bowl(SMALL), optim.SGD, ddp=False)
    trial.unsharded = Signs(trial.alone.parameters())
    trial.sharded = ZeroRedundancyOptimizer(trial.model.parameters(), Signs, element_wise=True)
    trial.train(range(3))
    trial.check("Signs")
    trial.sharded.consolidate_state_dict()
    if rank == 0:
        states = trial.sharded.state_dict()["state"]
        for number, state in trial.unsharded.state_dict()["state"].items():
            assert torch.equal(states[number]["last"], state["last"])


def arguments(rank: int, world_size: int) -> None:
    parameters = list(Bowl(SMALL).parameters())

    def make(*given: Any, **options: Any) -> Callable[[], object]:
        return lambda: ZeroRedundancyOptimizer(*given, **options)

    cases: list[tuple[type[Exception], str, Callable[[], object]]] = [
        (InvalidArgument, "gradients='half'", make(parameters, optim.SGD, gradients="half")),
        (InvalidArgument, "differentiable", make(parameters, optim.SGD, differentiable=True)),
        (ValueError, "Invalid learning rate: -1", make(parameters, optim.SGD, lr=-1.0)),
        (ValueError, "Invalid beta", make(parameters, optim.Adam, betas=(2.0, 0.5))),
        (TypeError, "unexpected keyword", make(parameters, optim.SGD, betas=1)),
        (TypeError, "iterable of Tensors or dicts", make(parameters[0], optim.SGD)),
        (ValueError, "empty parameter list", make([], optim.SGD)),
        (TypeError, "only optimize Tensors", make([1, 2], optim.SGD)),
        (InvalidArgument, "LAMB got lr=-1", make(parameters, LAMB, lr=-1.0)),
        (
            InvalidArgument,
            "do not all belong to one DistributedDataParallel",
            make(parameters, optim.SGD, gradients="shard"),
        ),
        (InvalidArgument, "passed twice", make([*parameters, parameters[0]], optim.SGD)),
        (
            InvalidArgument,
            "device",
            make([parameters[0], nn.Parameter(torch.ones(1, device="meta"))], optim.SGD),
        ),
        (
            InvalidArgument,
            "is on the meta device",
            make([nn.Parameter(torch.ones(1, device="meta"))], LAMB),
        ),
    ]
    for kind, text, call in cases:
        with pytest.raises(kind, match=text):
            call()
    optimizer = ZeroRedundancyOptimizer(parameters[:1], optim.SGD)
    with pytest.raises(ValueError, match="more than one parameter group"):
        optimizer.add_param_group({"params": parameters})
    with pytest.raises(InvalidArgument, match="differentiable"):
        optimizer.add_param_group({"params": parameters[1:], "differentiable": True})
    assert len(optimizer.param_groups) == 1
    for copier in (copy.copy, copy.deepcopy, pickle.dumps):
        with pytest.raises(InvalidArgument, match="pickled or copied"):
            copier(optimizer)
    with pytest.raises(TypeError):
        optimizer.step(other=1)
    assert isinstance(optimizer, TorchZeroRedundancyOptimizer)
    assert isinstance(optimizer, optim.Optimizer)
    assert (optimizer.rank, optimizer.world_size, optimizer.global_rank) == (rank, world_size, rank)
    assert "lr: 0.001" in repr(optimizer)


def overlap(rank: int, world_size: int) -> None:
    """torch's way to overlap is not needed, and does not fail in silence."""
    lines: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: lines.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("farandole")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    trial = Trial(Bowl(SMALL), optim.AdamW, lr=0.1)
    trial.sharded = ZeroRedundancyOptimizer(
        trial.model.parameters(),
        optim.AdamW,
        parameters_as_bucket_view=True,
        overlap_with_ddp=True,
        lr=0.1,
    )
    if ranks.share_memory():
        (line,) = lines
        assert "overlap_with_ddp=True has no effect" in line
    else:
        assert lines == []  # test_zero_overlap.py
    trial.train(range(3))
    trial.check("overlap")
    for make in (ddp_zero_hook.hook_with_zero_step, ddp_zero_hook.hook_with_zero_step_interleaved):
        with pytest.raises(InvalidArgument, match="call step\\(\\) after backward"):
            make(default_hooks.allreduce_hook, trial.ddp, trial.sharded)


def scaler_of_shards(rank: int, world_size: int) -> None:
    model = Bowl(SMALL)
    ddp = DistributedDataParallel(model)
    optimizer = ZeroRedundancyOptimizer(ddp.parameters(), optim.SGD, gradients="shard")
    scaler = torch.amp.GradScaler("cpu")
    scaler.scale(loss(ddp, rank, 0)).backward()
    with pytest.raises(InvalidArgument, match='gradients="shard"'):
        scaler.step(optimizer)
    disabled = torch.amp.GradScaler("cpu", enabled=False)
    disabled.step(optimizer)


def shards_of_one_replica(rank: int, world_size: int) -> None:
    """gradients="shard" takes all that one DistributedDataParallel trains, and its averaging."""
    model = Bowl(SMALL)
    ddp = DistributedDataParallel(model)
    parameters = list(model.parameters())
    with pytest.raises(InvalidArgument, match=r"did not get parameter 'weights\.2'"):
        ZeroRedundancyOptimizer(parameters[:2], optim.SGD, gradients="shard")
    with pytest.raises(
        InvalidArgument, match="different process group than the DistributedDataParallel"
    ):
        ZeroRedundancyOptimizer(
            parameters, optim.SGD, process_group=dist.new_group(), gradients="shard"
        )
    optimizer = ZeroRedundancyOptimizer(parameters, optim.SGD, gradients="shard")
    with pytest.raises(InvalidArgument, match="no all_reduce that a hook could replace"):
        ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    del optimizer
    ddp.register_comm_hook(None, default_hooks.allreduce_hook)
    with pytest.raises(
        InvalidArgument, match="DistributedDataParallel that has a communication hook"
    ):
        ZeroRedundancyOptimizer(parameters, optim.SGD, gradients="shard")
    ZeroRedundancyOptimizer(parameters, optim.SGD).step()


def different_parameters(rank: int, world_size: int) -> None:
    own = nn.Parameter(torch.full((3,), float(rank)))
    optimizer = ZeroRedundancyOptimizer([own], optim.SGD)
    own.grad = torch.ones(3)
    with pytest.raises(InvalidArgument, match="ranks 0 and 1 in group"):
        optimizer.step()
    with torch.no_grad():
        own.fill_(2)
    optimizer.step()
    with pytest.raises(InvalidArgument, match="ranks 0 and 1 in group"):
        ZeroRedundancyOptimizer([nn.Parameter(torch.ones(3 + rank))], optim.SGD)


def sparse_gradients(rank: int, world_size: int) -> None:
    embedding = nn.Embedding(5, 3, sparse=True, _weight=torch.ones(5, 3))
    optimizer = ZeroRedundancyOptimizer(embedding.parameters(), optim.SGD)
    embedding(torch.tensor([rank])).sum().backward()
    with pytest.raises(farandole.NotSupported, match="has a sparse gradient"):
        optimizer.step()


def clips_and_gradients(rank: int, world_size: int) -> None:
    """What the two ways in which averages come about cannot do."""
    trial = Trial(Bowl(SMALL), optim.SGD, gradients="shard", lr=0.1)
    model, sharded = trial.model, trial.sharded
    for arguments, text in (((1.0, 0.0), "norm_type 0"), ((float("nan"),), "max_norm nan")):
        with pytest.raises(InvalidArgument, match=text):
            sharded.clip_grad_norm_(*arguments)
    with pytest.raises(InvalidArgument, match="clip_grad_value_"):
        sharded.clip_grad_value_(-1.0)
    trial.backward(0)
    sharded.clip_grad_value_(0.1)
    with pytest.raises(InvalidArgument, match="between clip_grad_value_"):
        trial.backward(0)
    trial.zero_grad()
    trial.train(range(2))
    trial.check("after a clip that was in the way")
    if not ranks.share_memory():
        with pytest.raises(farandole.NotSupported, match="are sent in buckets"):
            sharded.add_param_group({"params": [nn.Parameter(torch.ones(2))]})
        trial.backward(2)
        model.weights[0].requires_grad_(False)
        with pytest.raises(InvalidArgument, match="is frozen and has a gradient"):
            sharded.step()
        with pytest.raises(InvalidArgument, match=r"requires_grad of 'weights\.0' has changed"):
            trial.backward(3)
    else:
        late = nn.Parameter(torch.ones(2, requires_grad=True))
        late.grad = torch.ones(2)
        with pytest.raises(InvalidArgument, match="is of dtype Int"):
            sharded.add_param_group({"params": [torch.ones(2, dtype=torch.int32)]})
        with pytest.raises(InvalidArgument, match="does not match"):  # noqa: PT012
            model.weights[0].grad = None
            model.weights[0].data = model.weights[0].data.double()
            model.weights[0].grad = torch.ones(7, 3, dtype=torch.float64)
            model.weights[0].data = model.weights[0].data.float()
            sharded.step()


CHECKS = [
    clips_and_gradients,
    classes,
    arguments,
    overlap,
    scaler_of_shards,
    shards_of_one_replica,
    different_parameters,
    sparse_gradients,
]


def misuse(rank: int, world_size: int) -> None:
    for check in CHECKS:
        check(rank, world_size)


@pytest.mark.parametrize("backend", ["farandole", "hosts", "gloo"])
def test_misuse_is_told(backend: str) -> None:
    ranks.run(misuse, 2, setup=ranks.Setup(backend=backend))


def test_there_must_be_a_group() -> None:
    with pytest.raises(InvalidArgument, match="no default group"):
        ZeroRedundancyOptimizer([nn.Parameter(torch.ones(1))], optim.SGD)


def dead_peer(rank: int, world_size: int, gradients: str) -> None:
    trial = Trial(Bowl(SMALL), optim.AdamW, gradients=gradients, ddp=False)
    trial.train(range(2))
    trial.backward(2)
    if rank == 1:
        os._exit(0)
    with pytest.raises(farandole.PeerFailure, match="rank 1"):
        trial.sharded.step()
    shrunk = farandole.shrink_group([1])
    if trial.ddp is not None:
        trial.ddp.set_process_group(shrunk)
    with pytest.raises(InvalidArgument, match="state of rank 1"):
        trial.sharded.rebuild(shrunk)


@pytest.mark.parametrize("gradients", MODES)
def test_a_dead_rank_is_named(gradients: str) -> None:
    ranks.run(dead_peer, 2, gradients, may_die=[1])
