# SPDX-License-Identifier: Apache-2.0
"""What communication and computation cost each other on this rank, measured without a model."""

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import farandole
import torch
import torch.distributed as dist
from torch import Tensor

SIDE = 128  # of matrices, which stay in the cache


@dataclass(frozen=True)
class Computed:
    """Multiplications of this thread."""

    count: int
    cpu_s: float


def contention(size: int, times: int) -> dict[str, Any]:
    """Of so many all_reduces of `size` bytes in turn, on the group's thread.

    `idle_s`, `busy_s`: how long they take while this thread sleeps, and while it multiplies.
    `cpu_s`: what they cost the latter. That is the CPU time of other threads; and that of the
    kernel, which handles packets in the time of whatever thread runs, so that a multiplication
    takes more CPU time than one without communication.
    """
    tensor = torch.zeros(size // 4)
    farandole.barrier()
    begin = time.perf_counter()
    reduced(tensor, times).wait()
    idle_s = time.perf_counter() - begin
    farandole.barrier()
    end = time.perf_counter() + idle_s
    alone = multiplied(lambda: time.perf_counter() >= end)
    farandole.barrier()
    begin, begin_cpu_s = time.perf_counter(), time.process_time()
    together = multiplied(reduced(tensor, times).is_completed)
    busy_s, cpu_s = time.perf_counter() - begin, time.process_time() - begin_cpu_s
    kernel_s = together.cpu_s - together.count * alone.cpu_s / alone.count
    return {
        "idle_s": idle_s,
        "busy_s": busy_s,
        "cpu_s": cpu_s - together.cpu_s + max(0.0, kernel_s),
    }


def reduced(tensor: Tensor, times: int) -> Any:
    """The last of so many all_reduces."""
    return [dist.all_reduce(tensor, async_op=True) for _ in range(times)][-1]


def multiplied(is_over: Callable[[], bool]) -> Computed:
    """Until then, at least once."""
    matrix, count, begin_cpu_s = torch.ones(SIDE, SIDE), 0, time.thread_time()
    while count == 0 or not is_over():
        torch.mm(matrix, matrix)
        count += 1
    return Computed(count, time.thread_time() - begin_cpu_s)
