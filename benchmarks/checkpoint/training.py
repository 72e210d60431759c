# SPDX-License-Identifier: Apache-2.0
"""Each lane's training, and how it is saved and loaded."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import farandole
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from benchmarks.checkpoint.tasks import TASKS
from benchmarks.zero.tasks import parameters_of, seeded_model


class Training:
    """A model and AdamW after one step."""

    def __init__(self, task: str, size: str, folder: Path) -> None:
        self.folder = folder
        self.model = farandole.DistributedDataParallel(seeded_model(TASKS[task], size))
        self.optimizer = self.new_optimizer()
        for parameter in self.model.parameters():
            parameter.grad = torch.full_like(parameter, 1e-3)
        self.optimizer.step()
        for parameter in self.model.parameters():
            parameter.grad = None

    def new_optimizer(self) -> Any:
        """Sharded."""
        return farandole.ZeroRedundancyOptimizer(
            self.model.parameters(), torch.optim.AdamW, lr=1e-3, gradients="full"
        )

    def save(self) -> None:
        """Return when it is on the disk."""
        raise NotImplementedError

    def begin(self) -> Callable[[], object]:
        """Begin an asynchronous save, and return what waits for it."""
        raise NotImplementedError

    def load(self) -> None:
        """What save() has written."""
        raise NotImplementedError


class OfFarandole(Training):
    """Ours."""

    def save(self) -> None:
        """As Training's."""
        farandole.save_checkpoint(
            self.folder, model=self.model, optimizer=self.optimizer, keep=1, rng=False
        )

    def begin(self) -> Callable[[], object]:
        """As Training's."""
        return farandole.save_checkpoint(
            *(self.folder,),
            model=self.model,
            optimizer=self.optimizer,
            keep=1,
            rng=False,
            asynchronous=True,
        ).wait

    def load(self) -> None:
        """As Training's."""
        farandole.load_checkpoint(self.folder, model=self.model, optimizer=self.optimizer)


class OfDcp(Training):
    """torch.distributed.checkpoint of a state that all ranks have, which it divides among them."""

    def new_optimizer(self) -> Any:
        """Not sharded."""
        return torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def state(self) -> dict[str, Any]:
        """Of the model and the optimizer."""
        model: nn.Module = self.model.module
        return {"model": model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def save(self) -> None:
        """As Training's."""
        save(self.state(), storage_writer=FileSystemWriter(self.folder))

    def begin(self) -> Callable[[], object]:
        """As Training's."""
        future = async_save(self.state(), storage_writer=FileSystemWriter(self.folder))
        assert isinstance(future, Future)
        return future.result

    def load(self) -> None:
        """As Training's."""
        state = self.state()
        load(state, storage_reader=FileSystemReader(self.folder))
        self.model.module.load_state_dict(state["model"])
        self.optimizer.load_state_dict(state["optimizer"])


class OfGathered(Training):
    """The whole state on rank 0, in one file."""

    def save(self) -> None:
        """As Training's."""
        self.optimizer.consolidate_state_dict(0)
        if dist.get_rank() == 0:
            self.folder.mkdir(exist_ok=True)
            state = (self.model.module.state_dict(), self.optimizer.state_dict())
            with (self.folder / "all.pt").open("wb") as file:
                torch.save(state, file)
                file.flush()
                os.fsync(file.fileno())
        dist.barrier()

    def load(self) -> None:
        """As Training's."""
        model, optimizer = torch.load(self.folder / "all.pt", weights_only=False)
        self.model.module.load_state_dict(model)
        self.optimizer.load_state_dict(optimizer)


class OfRaw(Training):
    """As many bytes as a rank of ours has, from one piece of memory."""

    def __init__(self, task: str, size: str, folder: Path) -> None:
        self.folder = folder
        ranks = dist.get_world_size()
        self.shared = parameters_of(TASKS[task], size) // ranks
        self.memory = torch.ones(3 * self.shared)
        self.copy: torch.Tensor | None = None

    def path(self, rank: int) -> Path:
        """Of a rank's file: its part of the parameters, then its state."""
        return self.folder / f"rank-{rank}"

    def save(self) -> None:
        """As Training's."""
        if dist.get_rank() == 0:
            shutil.rmtree(self.folder, ignore_errors=True)
            self.folder.mkdir()
        dist.barrier()
        with self.path(dist.get_rank()).open("wb", buffering=0) as file:
            data = memoryview(bytes_of(self.memory)).cast("B")
            while data:
                data = data[file.write(data) :]
            os.fsync(file.fileno())
        dist.barrier()

    def begin(self) -> Callable[[], object]:
        """As Training's."""
        if self.copy is None:
            self.copy = torch.ones_like(self.memory)
        self.copy.copy_(self.memory)
        return dist.barrier

    def load(self) -> None:
        """All parameters and the rank's own state, which is what a rank needs."""
        self.read_into(self.new_memory())

    def new_memory(self) -> torch.Tensor:
        """For what is read."""
        return torch.empty((dist.get_world_size() + 2) * self.shared)

    def read_into(self, memory: torch.Tensor) -> None:
        """Its own file, and the parameters in those of others."""
        own, ranks = dist.get_rank(), dist.get_world_size()
        left = memoryview(bytes_of(memory)).cast("B")
        for rank in (own, *(each for each in range(ranks) if each != own)):
            wanted = 4 * self.shared * (3 if rank == own else 1)
            data, left = left[:wanted], left[wanted:]
            with self.path(rank).open("rb", buffering=0) as file:
                while data:
                    data = data[file.readinto(data) or 0 :]
        dist.barrier()


class OfKept(OfRaw):
    """Into memory that stays."""

    kept: torch.Tensor | None = None

    def new_memory(self) -> torch.Tensor:
        """The first time."""
        if self.kept is None:
            self.kept = super().new_memory()
        return self.kept


def bytes_of(tensor: torch.Tensor) -> Any:
    """Its memory."""
    return tensor.numpy()


KINDS: dict[str, type[Training]] = {
    "farandole": OfFarandole,
    "dcp": OfDcp,
    "gathered": OfGathered,
    "raw": OfRaw,
    "kept": OfKept,
}
