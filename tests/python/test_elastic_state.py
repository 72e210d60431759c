# SPDX-License-Identifier: Apache-2.0
"""States, samplers and run() of farandole.elastic, and Horovod's names of them, on two ranks."""

from __future__ import annotations

import os
import socket
import time
from pathlib import Path
from typing import Any

import farandole
import horovod.common.elastic
import horovod.torch as hvd
import horovod.torch.elastic.state as handlers
import pytest
import torch
from farandole import elastic, elastic_meeting
from farandole.elastic import kept_commits
from horovod.common.exceptions import HorovodInternalError, HostsUpdatedInterrupt

import ranks


def launched() -> ranks.Setup:
    """Ranks that make their group themselves, as a launcher's variables say."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    return ranks.Setup(backend=None, env={"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port})


def take_place(rank: int, world_size: int) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))


def state_of(rank: int, **more: Any) -> elastic.TorchState:
    model = torch.nn.Linear(2, 2)
    torch.nn.init.constant_(model.weight, rank + 1.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.5 * (rank + 1), momentum=0.5)
    if rank == 0:
        model(torch.ones(1, 2)).sum().backward()
        optimizer.step()
    return elastic.TorchState(model, optimizer, **more)


def share_and_restore(rank: int, world_size: int) -> None:
    state = state_of(rank, epoch=10 + rank, commits="mine", name=None)
    state.epoch += 1
    state.sync()
    assert (state.epoch, state.commits) == (11, "mine")
    weight = state.model.weight.detach().clone()
    assert weight.max() < 1.0
    assert state.optimizer.param_groups[0]["lr"] == 0.5
    momentum = [each["momentum_buffer"] for each in state.optimizer.state.values()]
    assert [each.unique().item() for each in momentum] == [1.0, 1.0]
    torch.nn.init.zeros_(state.model.weight)
    state.epoch = 99
    state.restore()
    assert torch.equal(state.model.weight, weight)
    assert state.epoch == 11
    state.epoch = 12
    state.commit()
    state.epoch = 13
    state.restore()
    assert state.epoch == 12
    other = torch.nn.Linear(2, 2)
    state.model = other
    torch.nn.init.zeros_(other.weight)
    state.restore()
    assert other.weight.abs().sum() > 0


def test_a_state_is_shared_committed_and_restored() -> None:
    ranks.run(share_and_restore, 2)


def share_schedulers(rank: int, world_size: int) -> None:
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2)
    for _ in range(3 if rank == 0 else 1):
        optimizer.step()
        scheduler.step()
    state = elastic.TorchState(model, optimizer, scheduler=scheduler)
    state.sync()
    assert state.scheduler is scheduler
    assert scheduler.optimizer is optimizer
    assert (scheduler.last_epoch, optimizer.param_groups[0]["lr"]) == (3, 0.1)
    scheduler.step()
    state.restore()
    assert scheduler.last_epoch == 3
    scheduler.step()
    assert optimizer.param_groups[0]["lr"] == pytest.approx(0.01)


def test_schedulers_go_on_on_all_ranks() -> None:
    ranks.run(share_schedulers, 2)


def divide(rank: int, world_size: int) -> None:
    sampler = elastic.ElasticSampler(range(11), shuffle=True, seed=7)
    whole = [list(sampler), list(sampler)]
    assert whole[0] == whole[1]
    assert len(whole[0]) == len(sampler) == 6
    sampler.record_batch(0, 2)
    sampler.record_indices(whole[0][2:3])
    with pytest.raises(farandole.InvalidArgument, match="do not come next"):
        sampler.record_indices(whole[0][:2])
    assert sampler.processed_num == 6
    assert list(sampler) == whole[0]  # until ranks change
    state = elastic.TorchState(sampler=sampler)
    state.commit()
    sampler.record_batch(1, 2)
    state.restore()
    assert list(sampler) == [*whole[0][3:]]
    assert sampler.state_dict() == {"epoch": 0, "processed_num": 6}
    everyone: list[Any] = [None] * world_size
    farandole.all_gather_object(everyone, list(sampler) + whole[0][:3])
    assert set(everyone[0] + everyone[1]) == set(range(11))
    sampler.record_batch(1, 9)
    sampler.reset()
    assert list(sampler) == []
    sampler.set_epoch(1)
    assert len(list(sampler)) == 6
    assert list(sampler) != whole[0]


def test_a_sampler_divides_what_is_left() -> None:
    ranks.run(divide, 2)


class Counted(elastic.StateHandler):
    """A handler of the program's own."""

    def save(self) -> None:
        self.copy = list(self.value)

    def restore(self) -> None:
        self.value[:] = self.copy

    def sync(self) -> None:
        self.value[:] = hvd.broadcast_object(self.value, 0)


class Box(list[int]):
    """A type of the program's own."""


def of_horovod(rank: int, world_size: int) -> None:
    take_place(rank, world_size)
    hvd.init()
    before = list(handlers.get_handler_registry())
    handlers.set_handler_registry([*before, (Box, Counted)])
    box = Box([rank])
    state = hvd.elastic.TorchState(box=box, batch=rank)
    passes: list[tuple[int, int]] = []
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    @hvd.elastic.run
    def train(state: Any, more: int, *, named: str) -> str:
        passes.append((state.batch, hvd.size()))
        assert (more, named) == (3, "x")
        if len(passes) == 1:
            box.append(5)
            state.batch = 4
            state.commit()
            box.append(6)
            state.batch = 5
            raise HorovodInternalError("lost")
        if len(passes) == 2:
            assert box == [0, 5]
            state.batch = 7
            if rank == 0:
                state.on_hosts_updated(1, elastic.HostUpdateResult.removed)
            state.check_host_updates()
        assert hvd.allreduce(torch.ones(1), op=hvd.Sum).item() == world_size
        return "done"

    assert train(state, 3, named="x") == "done"
    assert passes == [(0, 2), (4, 2), (7, 2)]
    assert resets == [2, 2]
    handlers.set_handler_registry(before)
    hvd.shutdown()


def test_horovods_names_and_handlers_of_the_program() -> None:
    ranks.run(of_horovod, 2, setup=launched())
    assert issubclass(HostsUpdatedInterrupt, RuntimeError)
    assert HostsUpdatedInterrupt(True).skip_sync
    assert horovod.common.elastic.State is elastic.State


def first_to_return(rank: int, world_size: int) -> None:
    take_place(rank, world_size)
    farandole.init_process_group()
    for _ in range(2):
        if rank == 0:
            time.sleep(1)  # with its store, which others find
        farandole.destroy()
        farandole.init_process_group()
        total = torch.ones(1)
        farandole.all_reduce(total)
        assert total.item() == world_size
    farandole.destroy()


def test_a_rank_may_return_before_rank_0() -> None:
    ranks.run(first_to_return, 3, setup=launched())


def repeated(rank: int, world_size: int) -> None:
    take_place(rank, world_size)
    farandole.init_process_group()
    state = elastic.TorchState(batch=0)
    passes = []

    @elastic.run
    def train(state: elastic.TorchState) -> None:
        passes.append(state.batch)
        if len(passes) == 2:
            state.batch += 1
            state.commit()
        farandole.all_reduce(torch.ones(2 + rank))

    with pytest.raises(farandole.MismatchError):
        train(state)
    assert passes == [0, 0, 1]
    farandole.destroy()


def test_an_error_that_comes_again_without_a_commit_is_raised() -> None:
    ranks.run(repeated, 2, setup=launched())


def nowhere(rank: int, world_size: int) -> None:
    @elastic.run
    def train(state: elastic.TorchState) -> None:
        farandole.all_reduce(torch.ones(2 + rank))

    with pytest.raises(farandole.NotSupported, match=r"\[elastic-no-launcher\]"):
        train(elastic.TorchState())


def test_ranks_that_cannot_meet_again_are_told() -> None:
    ranks.run(nowhere, 2)


class Own(elastic.State):
    """A state of the program's own."""

    def __init__(self) -> None:
        super().__init__(lambda value: value, lambda: 0)
        self.calls: list[str] = []

    def save(self) -> None:
        self.calls.append("save")

    def restore(self) -> None:
        self.calls.append("restore")

    def sync(self) -> None:
        self.calls.append("sync")

    def reset(self) -> None:
        self.calls.append("reset")


def test_a_state_of_the_programs_own_alone() -> None:
    farandole.init_process_group()
    state = Own()
    state.register_reset_callbacks([lambda: state.calls.append("callback")])
    errors = [farandole.PeerFailure("x"), HostsUpdatedInterrupt(False), None]

    def train(_: Own) -> None:
        error = errors.pop(0)
        if error is not None:
            raise error
        state.commit()

    horovod.common.elastic.run_fn(train, elastic.run.__globals__["new_group"])(state)
    again = ["reset", "callback", "sync"]
    assert state.calls == ["sync", "restore", *again, *again, "save"]
    farandole.destroy()


def test_sharded_optimizers_are_refused() -> None:
    farandole.init_process_group()
    parameters = [torch.nn.Parameter(torch.ones(2))]
    sharded = farandole.ZeroRedundancyOptimizer(parameters, torch.optim.SGD, lr=0.1)
    with pytest.raises(farandole.NotSupported, match=r"\[elastic-sharded\]"):
        elastic.TorchState(optimizer=sharded)
    farandole.destroy()


def test_errors_of_other_kinds_pass() -> None:
    farandole.init_process_group()

    @elastic.run
    def train(state: elastic.TorchState) -> None:
        raise KeyError("x")

    with pytest.raises(KeyError):
        train(elastic.TorchState())
    farandole.destroy()


def test_ranks_that_start_at_once_remove_the_same_old_commits(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setattr(kept_commits, "_FOLDERS", tmp_path)
    monkeypatch.setenv("TORCHELASTIC_MAX_RESTARTS", "1")
    prefix = f"farandole-commits-{os.getuid()}"
    folders = [tmp_path / f"{prefix}-99999999{number}-1" for number in range(2)]
    for folder in folders:
        folder.mkdir()
    name_of = kept_commits._name_of

    def when_another_is_faster(pid: int) -> str:
        if folders[0].name.startswith(f"{prefix}-{pid}-"):
            folders[0].rmdir()
        return name_of(pid)

    monkeypatch.setattr(kept_commits, "_name_of", when_another_is_faster)
    assert kept_commits.of_this_job() is not None
    assert [path.name for path in tmp_path.iterdir()] == [f"{prefix}-{name_of(os.getppid())}"]


class Answers:
    """A launcher that answers with the same ranks, or with others where one is lost."""

    def __init__(self, lost: int) -> None:
        self.lost, self.generation = lost, 0
        self.members: list[int] = []
        self.store = torch.distributed.HashStore()

    def ask(self, _: elastic_meeting.Standing) -> elastic_meeting._Place:
        self.generation += 1
        self.members = [0, min(self.generation, self.lost + 1)]
        return elastic_meeting._Place(self.generation, 0, 2, 0, 2, True, 0, self.members)


@pytest.mark.parametrize("lost", [0, 5])
def test_what_no_retry_cures_is_raised(monkeypatch: pytest.MonkeyPatch, lost: int) -> None:
    for name in ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE"):
        monkeypatch.setenv(name, "0")
    monkeypatch.setenv(elastic_meeting.VARIABLE, "here:1/0")
    monkeypatch.setattr(elastic_meeting, "_is_over", False)
    answers = Answers(lost)
    monkeypatch.setattr(elastic_meeting, "_launcher", answers)

    def begin(*_: object) -> None:
        raise farandole.CommError("builds differ")

    with pytest.raises(farandole.CommError, match="builds differ"):
        elastic_meeting.until_formed(lambda: elastic_meeting.form(begin))
    assert answers.generation == lost + 3

    monkeypatch.setattr(elastic_meeting, "_is_over", False)
    answers.generation = 0
    with pytest.raises(farandole.CommError, match="builds differ"):  # of what follows the meeting
        elastic_meeting.until_formed(lambda: begin(elastic_meeting.form(lambda *_: None)))
    assert answers.generation == lost + 3
