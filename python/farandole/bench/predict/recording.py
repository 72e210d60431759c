# SPDX-License-Identifier: Apache-2.0
"""Records a training step: when each gradient is ready, on one rank without communication."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from farandole.bench.predict.recorded_step import Gradient, RecordedStep
from farandole.errors import InvalidArgument, sentences

WARM_UP = 3  # steps: memory is taken, caches fill, libraries choose kernels

Mark = Any  # a point of time


class HostClock:
    """For models on the CPU."""

    def now(self) -> Mark:
        """Of this thread."""
        return time.perf_counter()

    def milliseconds(self, begin: Mark, end: Mark) -> float:
        """Between two marks."""
        return 1e3 * float(end - begin)


class DeviceClock:
    """Of a CUDA device: marks are events on the current stream, so that the host need not wait."""

    def now(self) -> Mark:
        """Recorded on the stream."""
        event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]
        event.record()
        return event

    def milliseconds(self, begin: Mark, end: Mark) -> float:
        """Waits for the second one."""
        end.synchronize()
        return float(begin.elapsed_time(end))


@dataclass
class Marks:
    """Of one step."""

    begin: Mark
    forward_end: Mark = None
    optimizer_begin: Mark = None
    optimizer_end: Mark = None
    end: Mark = None
    ready: dict[int, Mark] = field(default_factory=dict)  # by parameter; the last pass counts


class StepRecorder:
    """Hooks on a module's parameters and an optimizer that note times.

    Record the module itself, before DistributedDataParallel: the prediction adds communication. All
    ranks of a host may record at once, as they will compute at once. Gradients that no backward of
    a step brings are left out.

    Threads: use it on the thread that trains; hooks run on autograd's.
    """

    def __init__(
        self,
        module: nn.Module,
        optimizer: torch.optim.Optimizer | None = None,
        *,
        name: str | None = None,
        warm_up: int = WARM_UP,
    ) -> None:
        """``warm_up``: the first steps, which are not counted."""
        _check(module)
        self._warm_up = warm_up
        self._name = name or type(module).__name__
        self._module = module
        self._parameters = [each for each in module.parameters() if each.requires_grad]
        self._steps: list[Marks] = []
        self._clock: HostClock | DeviceClock = HostClock()
        if any(each.is_cuda for each in self._parameters):
            self._clock = DeviceClock()
        self._handles: list[Any] = [module.register_forward_hook(self._note_forward)]
        for index, parameter in enumerate(self._parameters):
            hook: Any = parameter.register_post_accumulate_grad_hook
            self._handles.append(hook(self._note_gradient(index)))
        if optimizer is not None:
            self._handles.append(optimizer.register_step_pre_hook(self._note_optimizer_begin))
            self._handles.append(optimizer.register_step_post_hook(self._note_optimizer_end))

    @contextmanager
    def step(self) -> Iterator[None]:
        """Around forward, backward and the optimizer of one step."""
        marks = Marks(self._clock.now())
        self._steps.append(marks)
        yield
        marks.end = self._clock.now()

    def close(self) -> None:
        """Removes the hooks."""
        for handle in self._handles:
            handle.remove()
        self._handles = []

    def recorded(self) -> RecordedStep:
        """Medians of all steps but those that warm up.

        Raises:
            InvalidArgument: there are no such steps, or no gradient came.
        """
        counted = self._steps[self._warm_up :]
        steps = [each for each in counted if each.ready and each.end is not None]
        if not steps:
            raise InvalidArgument(
                sentences(
                    "predict-nothing-recorded",
                    f"a StepRecorder has recorded {len(self._steps)} steps.",
                    "a step counts if it is not one of the first ones, which warm up, and if a "
                    "backward of the module that was passed brings gradients.",
                    "record 13 steps or more, each in `with recorder.step():`.",
                )
            )
        indices = {index for marks in steps for index in marks.ready}
        ready = {index: self._median(steps, _ready_of(index)) for index in indices}
        backward_end = self._median(steps, lambda marks: self._last(marks))
        ready = {index: min(each, backward_end) for index, each in ready.items()}
        whole = [self._clock.milliseconds(marks.begin, marks.end) for marks in steps]
        optimizer = [self._optimizer_ms(marks) for marks in steps]
        optimizer_ms = statistics.median(optimizer)
        last = max(ready.values())
        return RecordedStep(
            name=self._name,
            device=str(self._parameters[0].device.type),
            gradients=tuple(
                _gradient(self._parameters[index], ready[index])
                for index in sorted(ready, key=lambda index: ready[index])
            ),
            forward_ms=rounded(self._median(steps, lambda marks: marks.forward_end)),
            optimizer_ms=rounded(optimizer_ms),
            other_ms=rounded(max(0.0, statistics.median(whole) - last - optimizer_ms)),
            steps_ms=(tuple(map(rounded, whole)),),
            buffer_bytes=sum(each.numel() * each.element_size() for each in self._module.buffers()),
        )

    def _median(self, steps: list[Marks], mark_of: Callable[[Marks], Mark]) -> float:
        """Milliseconds since the begin of the step, of the steps that have such a mark."""
        times = [
            self._clock.milliseconds(marks.begin, mark)
            for marks in steps
            if (mark := mark_of(marks)) is not None
        ]
        return statistics.median(times) if times else 0.0

    def _last(self, marks: Marks) -> Mark:
        """Of the gradients."""
        return max(marks.ready.values(), key=lambda m: self._clock.milliseconds(marks.begin, m))

    def _optimizer_ms(self, marks: Marks) -> float:
        if marks.optimizer_begin is None or marks.optimizer_end is None:
            return 0.0
        return self._clock.milliseconds(marks.optimizer_begin, marks.optimizer_end)

    def _note_forward(self, *_: Any) -> None:
        if self._current is not None:
            self._current.forward_end = self._clock.now()

    def _note_gradient(self, index: int) -> Callable[[Tensor], None]:
        def note(_: Tensor) -> None:
            if self._current is not None:
                self._current.ready[index] = self._clock.now()

        return note

    def _note_optimizer_begin(self, *_: Any) -> None:
        if self._current is not None:
            self._current.optimizer_begin = self._clock.now()

    def _note_optimizer_end(self, *_: Any) -> None:
        if self._current is not None:
            self._current.optimizer_end = self._clock.now()

    @property
    def _current(self) -> Marks | None:
        """The step that is under way."""
        if not self._steps or self._steps[-1].end is not None:
            return None
        return self._steps[-1]


def _ready_of(index: int) -> Callable[[Marks], Mark]:
    return lambda marks: marks.ready.get(index)


def _gradient(parameter: Tensor, ready_ms: float) -> Gradient:
    dtype = str(parameter.dtype).removeprefix("torch.")
    return Gradient(parameter.numel() * parameter.element_size(), dtype, rounded(ready_ms))


def rounded(milliseconds: float) -> float:
    """To tenths of a microsecond."""
    return round(milliseconds, 4)


def _check(module: nn.Module) -> None:
    import farandole

    wrappers = (nn.parallel.DistributedDataParallel, farandole.DistributedDataParallel)
    if isinstance(module, wrappers):
        raise InvalidArgument(
            sentences(
                "predict-wrapped",
                f"a StepRecorder got a {type(module).__name__}.",
                "its steps have communication, which the prediction would add once more.",
                "pass the module that it wraps, and train that one while you record.",
            )
        )
    if not any(each.requires_grad for each in module.parameters()):
        raise InvalidArgument(
            sentences(
                "predict-no-parameters",
                f"a StepRecorder got a {type(module).__name__} without parameters to train.",
                "gradients are what ranks send.",
                "pass the module whose parameters the optimizer has.",
            )
        )
