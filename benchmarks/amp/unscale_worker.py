# SPDX-License-Identifier: Apache-2.0
"""One process that divides gradients: SIZE DTYPE SOCKET FOLDER RANK WORLD_SIZE (from run.py).

On a line "<way> <iterations> <processes>" the first `processes` processes run this way so many
times on the gradients that all ways share; on "verify" each looks at what has become of them, and
whether each way finds an Inf and a NaN.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

import farandole
import torch
from torch import Tensor, nn
from torch.amp.grad_scaler import GradScaler as TorchGradScaler

from benchmarks.harness.answering import this_member
from benchmarks.zero.kernel_worker import times_ns
from benchmarks.zero.tasks import TASKS

SCALES = 2.0, 0.5  # by turns, so that gradients stay as large as they are


@dataclass(frozen=True)
class Way:
    """How gradients are divided."""

    prepare: Callable[[float], object]  # sets the scale; not measured
    run: Callable[[], object]
    found: Callable[[], bool]  # an Inf or NaN, in the last run


class Gradients:
    """Of one process, and the ways to divide them."""

    def __init__(self, rank: int, size: str, dtype: torch.dtype) -> None:
        self.rank, self.runs = rank, 0
        with torch.device("meta"):
            model = TASKS["transformer"].new_model(size)
        generator = torch.Generator().manual_seed(rank)
        self.parameters = []
        for each in model.parameters():
            parameter = nn.Parameter(torch.empty(each.shape, dtype=dtype))
            parameter.grad = torch.randn(each.shape, generator=generator).to(dtype)
            self.parameters.append(parameter)
        self.before = [gradient.clone() for gradient in self.gradients()]
        self.source = torch.cat([gradient.flatten() for gradient in self.before])
        self.target = torch.zeros_like(self.source)
        optimizer = torch.optim.SGD(self.parameters)  # never steps
        self.ways = {
            "farandole": scaler_way(farandole.GradScaler(), optimizer),
            "torch_kernel": self.kernel_way(),
            "torch_scaler": scaler_way(TorchGradScaler("cpu"), optimizer),
        }

    def gradients(self) -> list[Tensor]:
        """Those that all ways change."""
        return [each.grad for each in self.parameters if each.grad is not None]

    def kernel_way(self) -> Way:
        """What torch's GradScaler calls, on one list."""
        gradients, found, inverse = self.gradients(), torch.zeros(1), torch.ones(1)

        def prepare(scale: float) -> None:
            found.zero_()
            inverse.fill_(1 / scale)

        run = partial(torch._amp_foreach_non_finite_check_and_unscale_, gradients, found, inverse)
        return Way(prepare, run, lambda: bool(found))

    def times_ns(self, name: str, iterations: int) -> list[int]:
        """Of each iteration."""
        if name == "memcpy":
            return times_ns(partial(self.target.copy_, self.source), iterations)
        way = self.ways[name]

        def prepare() -> None:
            way.prepare(SCALES[self.runs % 2])
            self.runs += 1

        return times_ns(way.run, iterations, prepare)

    def answer(self, words: list[str]) -> dict[str, object]:
        """Does what a line from run.py asks for."""
        if words == ["verify"]:
            return {"wrong": sum(map(self.wrong_in, self.ways)) + self.wrong_in_copy()}
        way, iterations, processes = words[0], *map(int, words[1:])
        return {"times_ns": self.times_ns(way, iterations if self.rank < processes else 0)}

    def wrong_in(self, name: str) -> int:
        """Elements after all runs so far and after each of two more, and what is found wrongly."""
        wrong = self.wrong_elements()
        for _ in SCALES:
            self.times_ns(name, 1)
            wrong += self.wrong_elements() + self.ways[name].found()
        return wrong + sum(not self.finds(name, bad) for bad in (math.inf, -math.inf, math.nan))

    def wrong_elements(self) -> int:
        """Dividing by a power of two does not round."""
        scale = SCALES[0] if self.runs % 2 else 1
        pairs = zip(self.gradients(), self.before, strict=True)
        return sum(int((own != before / scale).sum()) for own, before in pairs)

    def finds(self, name: str, bad: float) -> bool:
        """In the last element of a gradient in the middle; puts back what was there."""
        gradient = self.gradients()[len(self.parameters) // 2].flatten()  # shares its memory
        kept = gradient[-1].clone()
        gradient[-1] = bad
        self.times_ns(name, 1)
        found = self.ways[name].found()
        self.times_ns(name, 1)
        gradient[-1] = kept
        return found

    def wrong_in_copy(self) -> int:
        """Elements."""
        return int((self.source != self.target).sum())


def scaler_way(scaler: TorchGradScaler, optimizer: torch.optim.Optimizer) -> Way:
    """unscale_() of a scaler; update() shows what it has found."""
    scaler.scale(torch.ones(()))  # none does anything before

    def found() -> bool:
        scale = scaler.get_scale()
        scaler.update()
        return scaler.get_scale() < scale

    return Way(scaler.update, partial(scaler.unscale_, optimizer), found)


if __name__ == "__main__":
    (size, dtype), member = this_member()
    torch.set_num_threads(1)
    member.serve(Gradients(member.rank, size, getattr(torch, dtype)).answer)
