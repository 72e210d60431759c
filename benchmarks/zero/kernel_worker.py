# SPDX-License-Identifier: Apache-2.0
"""One process of the kernels of AdamW: ELEMENTS SOCKET FOLDER RANK WORLD_SIZE (from run.py).

On a line "<way> <iterations> <processes>" the first `processes` processes run this way so many
times, on memory of their own; on "verify" each compares what its ways have made of the parameters.
"""

import time
from collections.abc import Callable
from typing import Any

import farandole
import torch
from torch import Tensor

from benchmarks.harness.answering import this_member
from benchmarks.zero.lanes import KERNEL_ARRAYS
from benchmarks.zero.trainers import EPSILON, LEARNING_RATE

OF_VALUE = 1e-5  # error allowed: both round in each of a hundred steps


class Kernels:
    """The arrays of all ways."""

    def __init__(self, rank: int, elements: int) -> None:
        self.rank = rank
        generator = torch.Generator().manual_seed(rank)
        self.gradient = torch.randn(elements, generator=generator)
        values = torch.randn(elements, generator=generator)
        self.of_torch, self.of_farandole = values.clone(), values
        self.torch_optimizer = self.new_torch_optimizer()
        self.states = [torch.zeros(elements), torch.zeros(elements)]
        self.own_gradient = self.gradient.clone()
        self.rule = farandole._C.adam_rule(
            LEARNING_RATE, eps=EPSILON, weight_decay=0.01, decoupled_weight_decay=True
        )
        self.steps = 0
        self.source, self.target = (torch.ones(KERNEL_ARRAYS * elements // 2) for _ in range(2))
        self.ways: dict[str, Callable[[], object]] = {
            "farandole": self.update,
            "torch": self.torch_optimizer.step,
            "memcpy": lambda: self.target.copy_(self.source),
        }

    def new_torch_optimizer(self) -> torch.optim.Optimizer:
        """Fused, of one parameter."""
        self.of_torch.grad = self.gradient
        return torch.optim.AdamW([self.of_torch], lr=LEARNING_RATE, eps=EPSILON, fused=True)

    def update(self) -> None:
        """One step of ours."""
        self.steps += 1
        farandole._C.update_parameters(
            self.rule, [self.of_farandole], [self.own_gradient], [self.states], [self.steps]
        )

    def answer(self, words: list[str]) -> dict[str, Any]:
        """Does what a line from run.py asks for."""
        if words == ["verify"]:
            return {"wrong": wrong_elements(self.of_farandole, self.of_torch)}
        way, iterations, processes = words[0], *map(int, words[1:])
        return {"times_ns": times_ns(self.ways[way], iterations * (self.rank < processes))}


def times_ns(
    run: Callable[[], object], iterations: int, prepare: Callable[[], object] = lambda: None
) -> list[int]:
    """Of each run, without what prepares it."""
    times = []
    for _ in range(iterations):
        prepare()
        begin = time.perf_counter_ns()
        run()
        times.append(time.perf_counter_ns() - begin)
    return times


def wrong_elements(own: Tensor, other: Tensor) -> int:
    """Those that are not close."""
    right = torch.isclose(own, other, rtol=OF_VALUE, atol=OF_VALUE)
    return right.numel() - int(right.sum())


if __name__ == "__main__":
    (elements,), member = this_member()
    torch.set_num_threads(1)
    member.serve(Kernels(member.rank, int(elements)).answer)
