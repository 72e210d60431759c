# SPDX-License-Identifier: Apache-2.0
"""One rank of a Python lane: takes questions from run.py, as collectives.cpp does for C++.

On "<lane> <operation> <bytes> <pieces> <warm-up> <iterations>" a worker verifies, warms up,
measures and verifies again.
"""

import itertools
import re
import time
from collections.abc import Callable
from typing import Protocol

import numpy as np

from benchmarks.collectives.definition import Array, expected, layout, values

Call = Callable[[], object]


class Library(Protocol):
    """What a lane measures."""

    rank: int
    world_size: int

    def empty(self, elements: int) -> Array:
        """A buffer as users of the library have it."""

    def call(self, operation: str, source: Array, target: Array, pieces: int) -> Call:
        """Does `operation` from `source` to `target` (the same where it works in place)."""


def in_turns(rank: int, send: Call, receive: Call) -> Call:
    """There and back: even ranks send first."""
    first, second = (receive, send) if rank % 2 else (send, receive)

    def ping_pong() -> None:
        first()
        second()

    return ping_pong


class Question:
    """One operation on buffers that are kept for all rounds: pages are touched only once."""

    def __init__(self, library: Library, operation: str, size: int, pieces: int) -> None:
        rank, ranks, elements = library.rank, library.world_size, size // 4
        inputs, outputs = layout(operation, elements, ranks, pieces)
        self.source = library.empty(inputs)
        self.target = library.empty(outputs) if outputs else self.source
        self.call = library.call(operation, self.source, self.target, pieces)
        self.values = values(inputs)
        self.expected = expected(operation, rank, ranks, elements, pieces)
        self.rank = rank

    def check(self) -> tuple[int, int, int]:
        """Wrong elements of one call on values with exact results; when it began and ended."""
        self.target.fill(-1)
        np.multiply(self.values, self.rank + 1, out=self.source)
        time.sleep(self.rank / 1e3)  # so that a barrier that does not wait is found out
        entered = time.perf_counter_ns()
        self.call()
        left = time.perf_counter_ns()
        wrong = 0 if self.expected is None else np.count_nonzero(self.target != self.expected)
        return int(wrong), entered, left

    def measure(self, barrier: Call, warmup: int, iterations: int) -> list[int]:
        """Nanoseconds from the end of one call to the end of the next, `iterations` times.

        On zeros, whose sums never overflow however often they are summed in place.
        """
        call, clock = self.call, time.perf_counter_ns
        self.source.fill(0)
        self.target.fill(0)
        for _ in range(warmup):
            call()
        ends = [0] * (iterations + 1)
        barrier()
        ends[0] = clock()
        for i in range(1, iterations + 1):
            call()
            ends[i] = clock()
        return [end - begin for begin, end in itertools.pairwise(ends)]


class Worker:
    """Keeps the buffers of the latest question."""

    def __init__(self, library: Library) -> None:
        self.library = library
        nothing = library.empty(0)
        self.barrier = library.call("barrier", nothing, nothing, 1)
        self.question: Question | None = None
        self.asked = ("", 0)

    def answer(self, words: list[str]) -> dict[str, object]:
        """Verifies and measures."""
        _, operation, *numbers = words  # a Python worker has one lane
        size, pieces, warmup, iterations = map(int, numbers)
        try:
            question = self.question_of(operation, size, pieces)
            before = question.check()
            periods = question.measure(self.barrier, warmup, iterations)
            after = question.check()
        except (NotImplementedError, RuntimeError) as error:
            return {"cannot": reason(error)}
        wrong, entered, left = zip(before, after, strict=True)
        return {"wrong": sum(wrong), "entered_ns": entered, "left_ns": left, "periods_ns": periods}

    def question_of(self, operation: str, size: int, pieces: int) -> Question:
        """The latest one, if it is the same."""
        if self.asked != (operation, size) or self.question is None:
            self.question, self.asked = None, (operation, size)  # frees the old buffers first
            self.question = Question(self.library, operation, size, pieces)
        return self.question


def reason(error: Exception) -> str:
    """Why the library lacks this operation; any other error ends this rank."""
    line = str(error).partition("\n")[0]
    lacks = r"\bnot (yet )?(been )?(support|implement)"
    if not isinstance(error, NotImplementedError) and not re.search(lacks, line, re.IGNORECASE):
        raise error
    return line
