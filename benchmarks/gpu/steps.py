# SPDX-License-Identifier: Apache-2.0
"""Whole training steps in bfloat16: forward, backward and AdamW's step()."""

from collections.abc import Callable
from functools import partial
from typing import Any

import farandole
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZeroRedundancyOptimizer
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel
from torch.optim import AdamW, Optimizer

from benchmarks.gpu.models import TASKS, Batch, Task, loss_of
from benchmarks.gpu.session import Session, median_row, ratio_row
from benchmarks.harness.results import Row

SETTINGS: dict[str, Any] = {"lr": 1e-4, "eps": 1e-4}
WARM_UP_STEPS = {"full": 5, "quick": 2}
STEPS = {"full": 5, "quick": 1}  # of a lane in a round
NEAR = 0.05  # losses of lanes after the same steps, relative; bfloat16 has three digits

Made = tuple[nn.Module, Optimizer]
Make = Callable[[nn.Module, Session], Made]


def whole(model: nn.Module) -> Optimizer:
    """All state on every rank."""
    return AdamW(model.parameters(), fused=True, **SETTINGS)


def local(model: nn.Module, session: Session) -> Made:  # noqa: ARG001
    """Without DDP: no communication."""
    return model, whole(model)


def our_ddp(model: nn.Module, session: Session) -> Made:
    """Farandole's DDP."""
    wrapped = farandole.DistributedDataParallel(model, process_group=session.ours)
    return wrapped, whole(wrapped)


def our_zero(model: nn.Module, session: Session) -> Made:
    """And its sharded optimizer."""
    wrapped = farandole.DistributedDataParallel(model, process_group=session.ours)
    return wrapped, farandole.ZeroRedundancyOptimizer(
        wrapped.parameters(), AdamW, process_group=session.ours, gradients="shard", **SETTINGS
    )


def torch_wrapped(model: nn.Module, group: dist.ProcessGroup) -> nn.Module:
    """With gradients in its buckets, its fastest."""
    return TorchDistributedDataParallel(model, process_group=group, gradient_as_bucket_view=True)


def torch_ddp(model: nn.Module, session: Session) -> Made:
    """Torch's DDP over NCCL."""
    wrapped = torch_wrapped(model, session.peer)
    return wrapped, whole(wrapped)


def torch_zero(model: nn.Module, session: Session) -> Made:
    """And torch's sharded optimizer, with the parameters in its buckets."""
    # Its buckets take the strides of channels_last away, and fused AdamW then refuses gradients.
    views = all(parameter.is_contiguous() for parameter in model.parameters())
    wrapped = torch_wrapped(model, session.peer)
    fastest = {"parameters_as_bucket_view": views, "fused": True, **SETTINGS}
    return wrapped, TorchZeroRedundancyOptimizer(
        wrapped.parameters(), AdamW, process_group=session.peer, **fastest
    )


LANES: dict[str, Make] = {
    "local": local,
    "farandole": our_ddp,
    "torch_nccl": torch_ddp,
    "farandole_zero": our_zero,
    "torch_zero": torch_zero,
}
PEERS = {"farandole": "torch_nccl", "farandole_zero": "torch_zero"}


class Trainer:
    """A model of its own that one lane trains."""

    def __init__(self, make: Make, task: Task, session: Session) -> None:
        torch.manual_seed(0)
        state = task.new_model(session.size).state_dict()
        with session.device:
            model = task.new_model(session.size)
        model.load_state_dict(state)
        self.module, self.optimizer = make(model, session)

    def step(self, batch: Batch) -> torch.Tensor:
        """Gives the loss, which nobody waits for."""
        self.optimizer.zero_grad(set_to_none=True)
        loss = loss_of(self.module, batch)
        loss.backward()  # type: ignore[no-untyped-call]
        self.optimizer.step()
        return loss.detach()


def measure(session: Session, task: Task) -> list[Row]:
    """One row a lane; a lane that its library refuses has the field `cannot`."""
    generator = torch.Generator().manual_seed(session.rank)
    inputs, classes = task.new_batch(session.size, generator)
    batch = (inputs.to(session.device), classes.to(session.device))
    trainers, rows = {}, []
    for lane, make in LANES.items():
        try:
            trainers[lane] = Trainer(make, task, session)
        except farandole.NotSupported as refusal:
            cannot = str(refusal).splitlines()[0]
            rows.append({"part": "steps", "task": task.name, "lane": lane, "cannot": cannot})
    warm_up(session, trainers, batch)
    bodies = {lane: partial(trainer.step, batch) for lane, trainer in trainers.items()}
    times = session.device_ms(bodies, STEPS[session.size])
    check_ranks(session, trainers)
    rows += [make_row(task, lane, times) for lane in trainers]
    medians = (f"{row['lane']} {row['median_ms']:.2f}" for row in rows if "median_ms" in row)
    session.say(f"{task.title}, median ms: {', '.join(medians)}")
    return [{**row, **session.fields()} for row in rows]


def warm_up(session: Session, trainers: dict[str, Trainer], batch: Batch) -> None:
    """Every lane takes the same steps; losses of those that communicate must be near each other."""
    losses = {}
    for lane, trainer in trainers.items():
        for _ in range(WARM_UP_STEPS[session.size]):
            loss = trainer.step(batch)
        mean = loss.double().cpu() / session.ranks
        dist.all_reduce(mean, group=session.ours)
        losses[lane] = float(mean)
    wanted = losses["torch_nccl"]
    for lane, found in losses.items():
        if lane != "local" or session.ranks == 1:
            is_wrong = not abs(found - wanted) <= NEAR * abs(wanted)  # also if it is NaN
            session.check(int(is_wrong), f"{lane}, loss {found} instead of {wanted}")
    check_ranks(session, trainers)


def check_ranks(session: Session, trainers: dict[str, Trainer]) -> None:
    """All ranks of a lane must have the same parameters."""
    for lane, trainer in trainers.items():
        if lane == "local":
            continue
        if isinstance(trainer.optimizer, farandole.ZeroRedundancyOptimizer):
            trainer.optimizer.wait()
        sums = torch.stack([p.detach().double().sum() for p in trainer.module.parameters()]).cpu()
        least, most = sums.clone(), sums.clone()
        dist.all_reduce(least, dist.ReduceOp.MIN, group=session.ours)
        dist.all_reduce(most, dist.ReduceOp.MAX, group=session.ours)
        finite = bool(sums.isfinite().all())
        session.check(int((least != most).sum()) + (not finite), f"{lane}, parameters of ranks")


def make_row(task: Task, lane: str, times: dict[str, list[float]]) -> Row:
    """See docs/benchmarks.md."""
    row: Row = {"part": "steps", "task": task.name, "lane": lane, "dtype": "bfloat16"}
    row |= {**median_row(times[lane], "ms"), "verified": True}
    if lane != "local":
        row |= ratio_row(times[lane], times["local"], "ratio")
    peer = PEERS.get(lane)
    if peer in times:
        row |= ratio_row(times[lane], times[peer], "of_peer")
    return row


def measure_all(session: Session) -> list[Row]:
    """Of both models."""
    return [row for task in TASKS.values() for row in measure(session, task)]
