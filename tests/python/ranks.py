# SPDX-License-Identifier: Apache-2.0
"""Runs a function on several ranks that are processes, with a deadline."""

from __future__ import annotations

import contextlib
import gc
import multiprocessing
import os
import time
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

# Whether FARANDOLE_TEST_ALL asks for whole test matrices.
WHOLE_MATRIX = bool(os.environ.get("FARANDOLE_TEST_ALL"))
# Whether FARANDOLE_TEST_THIN asks for short trainings, as sanitizers need.
THIN_MATRIX = bool(os.environ.get("FARANDOLE_TEST_THIN"))
DEADLINE_S = 60.0
TIMEOUT_S = 30.0

# A server that has imported torch forks the ranks: each starts in milliseconds, in a process that
# has not computed anything. (torch.optim imports torch._dynamo in its first step, for seconds;
# modules of tests import the others, for 0.1 to 0.3 s.)
FORKSERVER = multiprocessing.get_context("forkserver")
FORKSERVER.set_forkserver_preload(
    [
        *("torch", "torch._dynamo", "torch.distributed.optim", "torch.utils.serialization"),
        *("torch.distributed.checkpoint", "torch.distributed.checkpoint._fsspec_filesystem"),
        *("farandole", "farandole.run", "horovod.torch", "horovod.torch.elastic", "pytest"),
    ]
)

Body = Callable[..., Any]


@dataclass(frozen=True)
class Setup:
    """How each rank starts."""

    # None: the body makes the group; "hosts": farandole, every second rank on another host;
    # "sim-lazy": farandole, new tensors are on the simulated device, under a sim.SCHEDULES
    backend: str | None = "farandole"
    timeout_s: float = TIMEOUT_S
    env: Mapping[str, str] = field(default_factory=dict)


def run(
    body: Body,
    world_size: int,
    *args: Any,
    setup: Setup = Setup(),
    deadline_s: float = DEADLINE_S,
    may_die: Sequence[int] = (),
) -> list[Any]:
    """Calls ``body(rank, world_size, *args)`` on every rank and returns what each returned.

    A rank that raises, dies (unless in ``may_die``: then its result is None) or is not done at the
    deadline, which is later on a busy machine, fails the test; no process is left behind.
    """
    import torch.distributed as dist

    # Here, as with torchrun, and not a FileStore: one whose rank is killed while it writes there
    # has the others read for ever.
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    ends, processes = [], []
    for rank in range(world_size):
        receiver, sender = FORKSERVER.Pipe(duplex=False)
        process = FORKSERVER.Process(
            target=_enter, args=(sender, body, rank, world_size, args, store.port, setup)
        )
        process.start()
        sender.close()
        ends.append(receiver)
        processes.append(process)
    try:
        return _collect(ends, processes, time.monotonic() + deadline_s * load(), may_die)
    finally:
        for process in processes:
            if process.is_alive():
                process.kill()
            process.join()


def load() -> float:
    """The number of running processes per core, now or in the last minute; at least 1.

    Limits of failure detection grow with it, as detection_limit() of the C++ tests. Call it at the
    end of the wait.
    """
    minute, _, _, running = Path("/proc/loadavg").read_text().split()[:4]
    running = running.partition("/")[0]
    return max(1.0, max(float(minute), float(running)) / (os.cpu_count() or 1))


def share_memory() -> bool:
    """Whether the ranks of the default group do, for new tensors."""
    import torch.distributed as dist

    is_here = dist.get_backend() == "farandole" and "FARANDOLE_HOST_ID" not in os.environ
    return is_here and not on_simulated_device()


def on_simulated_device() -> bool:
    """Whether new tensors are, in a rank."""
    import torch

    return torch.get_default_device().type == "sim"


def _collect(
    ends: list[Connection], processes: list[Any], deadline: float, may_die: Sequence[int]
) -> list[Any]:
    results, problems = [], []
    for rank, (end, process) in enumerate(zip(ends, processes, strict=True)):
        result = None
        if not end.poll(max(0.0, deadline - time.monotonic())):
            problems.append(f"rank {rank} was not done at the deadline")
        else:
            try:
                failure, result = end.recv()
                if failure:
                    problems.append(f"rank {rank} raised:\n{failure}")
            except EOFError:
                process.join()
                if rank not in may_die:
                    problems.append(f"rank {rank} died with exit code {process.exitcode}")
        results.append(result)
    for rank, process in enumerate(processes):
        process.join(max(0.0, deadline - time.monotonic()))
        if process.exitcode != 0 and rank not in may_die and not problems:
            problems.append(f"rank {rank} ended with exit code {process.exitcode}")
    assert not problems, "\n".join(problems)
    return results


@contextlib.contextmanager
def _prepared(backend: str | None, rank: int) -> Iterator[str | None]:
    """Brings about what a backend of Setup stands for; yields its name in torch."""
    if backend == "hosts":
        os.environ["FARANDOLE_HOST_ID"] = f"host{rank % 2}"
        os.environ["FARANDOLE_NETWORK_INTERFACE"] = "lo"
        yield "farandole"
    elif backend is not None and backend.startswith("sim-"):
        import torch

        import sim

        with sim.of_rank(rank, backend.removeprefix("sim-")):
            torch.set_default_device(torch.device("sim", rank))
            yield "farandole"
    else:
        yield backend


def _enter(
    sender: Connection,
    body: Body,
    rank: int,
    world_size: int,
    args: tuple[Any, ...],
    port: int,
    setup: Setup,
) -> None:
    # Else the garbage collector of each rank visits all that the server has imported, which takes a
    # third of the CPU time.
    gc.freeze()
    # torch 2.15 records every collective and takes seconds to dump them at a failure.
    os.environ["TORCH_FR_BUFFER_SIZE"] = "0"
    os.environ.update(setup.env)
    import torch
    import torch.distributed as dist

    dist.set_debug_level_from_env()
    torch.set_num_threads(1)
    try:
        with _prepared(setup.backend, rank) as backend:
            if backend == "gloo":  # else a rank that sends nothing may end while others connect
                os.environ["TORCH_DIST_INIT_BARRIER"] = "1"
            if backend is not None:
                dist.init_process_group(
                    backend,
                    store=dist.TCPStore("127.0.0.1", port, is_master=False),
                    rank=rank,
                    world_size=world_size,
                    timeout=timedelta(seconds=setup.timeout_s),
                )
            result = body(rank, world_size, *args)
            if backend is not None and dist.is_initialized():
                dist.destroy_process_group()
        sender.send((None, result))
    except BaseException:
        sender.send((traceback.format_exc(), None))
