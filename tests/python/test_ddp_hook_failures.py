# SPDX-License-Identifier: Apache-2.0
"""A communication hook that fails on one rank: all ranks get an error, and training goes on."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from farandole import BackwardError, DistributedDataParallel, TimeoutError
from torch import Tensor, nn
from torch.distributed.algorithms.ddp_comm_hooks import default_hooks, powerSGD_hook

import ranks
from ddp_models import Layers
from ddp_oracle import assert_gradients, batch, expected, seeded

Future = torch.futures.Future[Tensor]


def plain_loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return model(batch(rank, step, 4, 8)).square().mean()


def average(bucket: dist.GradBucket) -> Future:
    return default_hooks.allreduce_hook(None, bucket)


def raises_before(bucket: dist.GradBucket) -> Future:
    raise KeyError("own")


def raises_after(bucket: dist.GradBucket) -> Future:
    average(bucket)
    raise KeyError("own")


def raises_in_callback(bucket: dist.GradBucket) -> Future:
    def fail(future: Future) -> Tensor:
        raise KeyError("own")

    return average(bucket).then(fail)


def future_of_an_exception(bucket: dist.GradBucket) -> Future:
    future: Future = torch.futures.Future()
    future.set_exception(KeyError("own"))
    return future


def no_future(bucket: dist.GradBucket) -> Any:
    return "own"


def no_tensor(bucket: dist.GradBucket) -> Future:
    return average(bucket).then(lambda _: torch.zeros(1))  # own: of another size


class RaisesOnce:
    """Its second call works."""

    def __init__(self) -> None:
        self.calls = 0

    def __call__(self, bucket: dist.GradBucket) -> Future:
        self.calls += 1
        if self.calls == 1:
            raise KeyError("own")
        return average(bucket)


Fault = Callable[[dist.GradBucket], Any]


def fails_on_one_rank(make: Callable[[], Fault], fails_in: int, own: type[BaseException]) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    ddp = DistributedDataParallel(seeded(Layers), bucket_cap_mb=0.0002)
    fault: Fault | None = None

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if fault is not None and bucket.index() == fails_in:
            return fault(bucket)  # type: ignore[no-any-return]
        return average(bucket)

    ddp.register_comm_hook(None, hook)
    outcome = []
    for step in range(6):
        fault = make() if (rank, step) in ((1, 1), (1, 3)) else None
        wanted = expected(ddp.module, world_size, plain_loss, step)
        ddp.zero_grad()
        try:
            plain_loss(ddp, rank, step).backward()
        except BackwardError as error:
            named = f"failed for bucket {fails_in} on rank 1" in str(error)
            outcome.append("peer" if named else str(error))
        except TimeoutError as error:
            outcome.append(str(error))
        except (own, RuntimeError) as error:
            is_its_own = isinstance(error, own) or make() is not future_of_an_exception
            outcome.append("own" if is_its_own else str(error))
        else:
            outcome.append("good")
            assert_gradients(ddp, wanted)
        dist.all_reduce(torch.ones(3))  # the program's own group is in step
    assert len(ddp._replica.plan().buckets) >= 3  # type: ignore[union-attr]
    bad = "own" if rank == 1 else "peer"
    assert outcome == ["good", bad, "good", bad, "good", "good"], (make, fails_in, outcome)


def failures(rank: int, world_size: int) -> None:
    for fails_in in (0, 1, 2):
        for fault in (
            raises_before,
            raises_after,
            raises_in_callback,
            future_of_an_exception,
            no_future,
            no_tensor,
        ):
            fails_on_one_rank(lambda fault=fault: fault, fails_in, KeyError)  # type: ignore[misc]
        fails_on_one_rank(RaisesOnce, fails_in, KeyError)


def failures_over_another_backend(rank: int, world_size: int) -> None:
    """Where nobody can take a collective back that a hook left out."""
    for fails_in in (0, 2):
        for fault in (raises_after, raises_in_callback, no_tensor):
            fails_on_one_rank(lambda fault=fault: fault, fails_in, KeyError)  # type: ignore[misc]
        fails_on_one_rank(RaisesOnce, fails_in, KeyError)


@pytest.mark.parametrize("world_size", [2, 3])
def test_a_failing_hook_is_told_to_the_others(world_size: int) -> None:
    ranks.run(failures, world_size, setup=ranks.Setup(timeout_s=10))


def test_a_failing_hook_is_told_over_another_backend() -> None:
    ranks.run(failures_over_another_backend, 2, setup=ranks.Setup(backend="gloo", timeout_s=10))


def power_sgd_fails(rank: int, world_size: int) -> None:
    """Its collectives follow each other in callbacks."""
    state = powerSGD_hook.PowerSGDState(None, 1, start_powerSGD_iter=2, min_compression_rate=1)
    ddp = DistributedDataParallel(seeded(Layers).float(), bucket_cap_mb=0.0002)
    fails = False

    def hook(state: Any, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        if fails and bucket.index() == 1:
            raise KeyError("own")
        return powerSGD_hook.powerSGD_hook(state, bucket)

    ddp.register_comm_hook(state, hook)
    outcome = []
    for step in range(8):
        fails = (rank, step) == (1, 5)
        ddp.zero_grad()
        try:
            ddp(batch(rank, step, 4, 8).float()).square().mean().backward()
        except (BackwardError, KeyError, RuntimeError) as error:
            outcome.append(type(error).__name__)
        else:
            outcome.append("good")
    assert outcome[:5] == ["good"] * 5
    assert outcome[5] == ("KeyError" if rank == 1 else "BackwardError"), outcome
    assert outcome[6:] == ["good"] * 2, outcome


def test_a_hook_of_several_collectives_may_fail() -> None:
    ranks.run(power_sgd_fails, 2, setup=ranks.Setup(timeout_s=10))


def never_completed(rank: int, world_size: int) -> None:
    ddp = DistributedDataParallel(seeded(Layers))
    forgets = False

    def hook(state: object, bucket: dist.GradBucket) -> torch.futures.Future[torch.Tensor]:
        future = average(bucket)
        return torch.futures.Future() if forgets else future

    ddp.register_comm_hook(None, hook)
    for step in range(4):
        forgets = (rank, step) == (1, 2)
        wanted = expected(ddp.module, world_size, plain_loss, step)
        ddp.zero_grad()
        if step != 2:
            plain_loss(ddp, rank, step).backward()
            assert_gradients(ddp, wanted)
            continue
        with pytest.raises(TimeoutError if rank == 1 else BackwardError) as caught:
            plain_loss(ddp, rank, step).backward()
        text = str(caught.value)
        assert "bucket 0" in text
        assert "on rank 1" in text
        assert rank == 0 or "timeout of 2000 ms" in text


@pytest.mark.parametrize("backend", ["farandole"])
def test_a_future_that_is_never_completed(backend: str) -> None:
    ranks.run(never_completed, 2, setup=ranks.Setup(backend=backend, timeout_s=2))
