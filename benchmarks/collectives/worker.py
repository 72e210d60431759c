# SPDX-License-Identifier: Apache-2.0
"""One rank of a Python lane: takes questions from run.py, as all_reduce.cpp does for C++.

Protocol, one line each way: on "<lane> <bytes> <warm-up> <iterations>" a worker verifies, warms up,
measures, verifies again, and answers with one line of JSON. Between two questions it sleeps in
recv(), so that it takes no core from the lane that is measured.
"""

import itertools
import json
import socket
import time
from collections.abc import Callable

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float32]
Call = Callable[[], object]

PERIOD = 1021  # of the values that are verified; a prime, so that a block in the wrong place shows


class Rank:
    """Rank `rank` of `world_size`, and how its lane does an all-reduce.

    `make_buffer(count)` returns a float32 array and a call that sums it in place over all ranks;
    `barrier()` returns when all ranks are there.
    """

    def __init__(
        self,
        rank: int,
        world_size: int,
        make_buffer: Callable[[int], tuple[Array, Call]],
        barrier: Call,
    ) -> None:
        self.rank = rank
        self.world_size = world_size
        self.make_buffer = make_buffer
        self.barrier = barrier
        self.buffer: Array = np.empty(0, dtype=np.float32)
        self.values: Array = self.buffer  # what rank 0 sends when it verifies

    def serve(self, path: str) -> None:
        """Answers run.py, which listens at `path`, until it hangs up."""
        with socket.socket(socket.AF_UNIX) as driver:
            driver.connect(path)
            driver.sendall(f"{self.rank}\n".encode())
            for question in driver.makefile():
                _, *numbers = question.split()  # a Python worker has one lane
                answer = self.answer(*map(int, numbers))
                driver.sendall(json.dumps(answer).encode() + b"\n")

    def answer(self, size: int, warmup: int, iterations: int) -> dict[str, object]:
        """Verifies and measures all-reduces of `size` bytes."""
        count = size // 4
        if len(self.buffer) != count:  # kept for all rounds, so its pages are touched only once
            self.buffer, self.all_reduce = self.make_buffer(count)
            self.values = np.resize(np.arange(1, PERIOD + 1, dtype=np.float32), count)
        wrong = self.count_wrong()
        periods = self.measure(warmup, iterations)
        wrong += self.count_wrong()
        return {"wrong": wrong, "periods_ns": periods}

    def count_wrong(self) -> int:
        """Elements that one all-reduce of values with exact sums gets wrong."""
        np.multiply(self.values, self.rank + 1, out=self.buffer)
        self.all_reduce()
        total = self.world_size * (self.world_size + 1) // 2
        return int(np.count_nonzero(self.buffer != self.values * np.float32(total)))

    def measure(self, warmup: int, iterations: int) -> list[int]:
        """Nanoseconds from the end of one all-reduce to the end of the next, `iterations` times.

        On zeros, whose sums never overflow however often they are summed in place.
        """
        all_reduce, clock = self.all_reduce, time.perf_counter_ns
        self.buffer.fill(0)
        for _ in range(warmup):
            all_reduce()
        ends = [0] * (iterations + 1)
        self.barrier()
        ends[0] = clock()
        for i in range(1, iterations + 1):
            all_reduce()
            ends[i] = clock()
        return [end - begin for begin, end in itertools.pairwise(ends)]
