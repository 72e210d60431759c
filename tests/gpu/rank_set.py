# SPDX-License-Identifier: Apache-2.0
"""Ranks that stay for many tests: importing torch and making a CUDA context takes seconds."""

from __future__ import annotations

import importlib
import multiprocessing
import os
import tempfile
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import timedelta
from multiprocessing.connection import Connection
from typing import Any

import pytest
import torch
import torch.distributed as dist

import ranks
import sim
from benchmarks.gpu.accelerator import ACCELERATORS, Accelerator

START_S = 120.0
TIMEOUT_S = 30.0  # of collectives; half of the deadline, so that errors come from the group
DEADLINE_S = 60.0

STAGED = "staged"

Body = Callable[..., Any]


class LeftOut(Exception):
    """Raised by a body for what cannot be checked here; the text says why."""


@dataclass(frozen=True)
class World:
    """Which ranks there are."""

    type: str  # of their devices
    size: int
    # How several ranks have one GPU: the variable of NCCL that allows it, or STAGED; "": each has
    # its own
    sharing: str = ""
    schedule: str = "lazy"  # of the simulated device

    def __str__(self) -> str:
        """Of checks; without spaces, so that pytest's -k takes it."""
        text = f"{self.size}-rank{'s' * (self.size > 1)}"
        if self.is_staged:
            return f"{text}-{STAGED}"
        return f"{text}-on-one-GPU-by-{self.sharing}" if self.sharing else text

    @property
    def is_staged(self) -> bool:
        """Whether tensors travel through host memory, without NCCL."""
        return self.sharing == STAGED

    @property
    def accelerator(self) -> Accelerator:
        return ACCELERATORS[self.type]

    def environment(self, rank: int) -> dict[str, str]:
        """Variables of a rank, set before its group is made."""
        found = {**self.accelerator.environment(), "FARANDOLE_DEVICE_BACKEND": "nccl"}
        if self.is_staged:
            found["FARANDOLE_DEVICE_BACKEND"] = "staged"
        elif self.sharing == "NCCL_HOSTID":
            found |= {"NCCL_HOSTID": f"host{rank}", "NCCL_SOCKET_IFNAME": "lo"}
        elif self.sharing:
            found[self.sharing] = "1"
        return found


class RankSet:
    """The processes of a world, which run one body after another in one group.

    The first call starts them. After a failure they are killed, and the next call starts others.
    """

    def __init__(self, world: World, backend: str = "farandole") -> None:
        self.world, self.backend = world, backend
        self.processes: list[Any] = []
        self.connections: list[Connection] = []
        self.folder: tempfile.TemporaryDirectory[str] | None = None  # where they meet

    def run(
        self,
        body: Body,
        *args: Any,
        deadline_s: float = DEADLINE_S,
        may_die: Sequence[int] = (),
    ) -> list[Any]:
        """Calls ``body(rank, world, *args)`` on every rank and returns what each returned.

        A rank that raises, dies (unless in ``may_die``) or is not done at the deadline fails the
        test. Skips the test if ranks raise LeftOut.
        """
        __tracebackhide__ = True
        if not self.processes:
            self._start()
        for connection in self.connections:
            connection.send((body, args))
        answers = self._answers(time.monotonic() + deadline_s, may_die)
        problems = [text for kind, text in answers if kind == "failed"]
        if problems or may_die:
            self.kill()
        assert not problems, "\n".join(problems)
        for kind, text in answers:
            if kind == "left out":
                pytest.skip(text)
        return [value for _, value in answers]

    def close(self) -> None:
        """Ends the ranks as programs end."""
        for connection in self.connections:
            connection.close()
        for process in self.processes:
            process.join(20)
        codes = [process.exitcode for process in self.processes]
        self.kill()
        assert not any(codes), f"ranks ended with exit codes {codes}"

    def kill(self) -> None:
        """Ends them at once."""
        for process in self.processes:
            if process.is_alive():
                process.kill()
            process.join()
        for connection in self.connections:
            connection.close()
        self.processes, self.connections = [], []
        if self.folder:
            self.folder.cleanup()

    def _start(self) -> None:
        # A process that has looked for GPUs must not fork ranks.
        context = ranks.FORKSERVER if self.world.type == "sim" else _SPAWN
        self.folder = tempfile.TemporaryDirectory(prefix="farandole-gpu-")
        for rank in range(self.world.size):
            own, its = context.Pipe()
            arguments = (its, self.world, rank, self.backend, f"{self.folder.name}/store")
            process = context.Process(target=_serve, args=arguments, daemon=True)
            process.start()
            its.close()
            self.processes.append(process)
            self.connections.append(own)
        problems = [
            text for kind, text in self._answers(time.monotonic() + START_S, ()) if kind == "failed"
        ]
        if problems:
            self.kill()
            raise AssertionError("\n".join(problems))

    def _answers(self, deadline: float, may_die: Sequence[int]) -> list[tuple[str, Any]]:
        """One a rank: "done", "left out" or "failed", and what it returned or why."""
        return [
            self._answer(rank, deadline, rank in may_die) for rank in range(len(self.connections))
        ]

    def _answer(self, rank: int, deadline: float, may_die: bool) -> tuple[str, Any]:
        connection = self.connections[rank]
        try:
            if not connection.poll(max(0.0, deadline - time.monotonic())):
                return "failed", f"rank {rank} was not done at the deadline"
            kind, value = connection.recv()
        except (EOFError, ConnectionResetError):
            self.processes[rank].join(5)
            text = f"rank {rank} died with exit code {self.processes[rank].exitcode}"
            return ("done", None) if may_die else ("failed", text)
        return kind, f"rank {rank} raised:\n{value}" if kind == "failed" else value


_SPAWN = multiprocessing.get_context("spawn")


def _serve(connection: Connection, world: World, rank: int, backend: str, store: str) -> None:
    """A rank, from start to end."""
    os.environ["TORCH_FR_BUFFER_SIZE"] = "0"
    os.environ.update(world.environment(rank))
    try:
        _join(world, rank, backend, store)
        connection.send(("done", None))
        while True:
            body, args = connection.recv()
            connection.send(_outcome(world, body, rank, args))
    except EOFError:
        if dist.is_initialized():
            dist.destroy_process_group()
    except BaseException:
        connection.send(("failed", traceback.format_exc()))
        raise


def _join(world: World, rank: int, backend: str, store: str) -> None:
    """Makes the group; rank i has device i, unless all have the first one."""
    torch.set_num_threads(1)
    world.accelerator.load()
    if world.type == "sim":
        torch.ops.farandole_sim.set_schedule(sim.ALL_SCHEDULES.index(world.schedule))
    is_shared = world.sharing and world.type == "cuda"  # races are looked for in each process
    world.accelerator.module.set_device(0 if is_shared else rank)
    importlib.import_module("farandole")
    dist.init_process_group(
        backend,
        store=dist.FileStore(store, world.size),
        rank=rank,
        world_size=world.size,
        timeout=timedelta(seconds=TIMEOUT_S),
    )


def _outcome(world: World, body: Body, rank: int, args: tuple[Any, ...]) -> tuple[str, Any]:
    try:
        value = body(rank, world, *args)
        world.accelerator.settle()
    except LeftOut as reason:
        return "left out", str(reason)
    except BaseException:
        return "failed", traceback.format_exc()
    return "done", value
