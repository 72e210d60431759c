# SPDX-License-Identifier: Apache-2.0
"""An optimizer whose gradients are averaged over the ranks while backward runs, without a wrapper.

Gradients of a parameter are sent when backward has added to them as often as a step takes passes.
The order in which they come may differ between ranks. DistributedDataParallel, which knows the
model, does the same for less: it plans buckets, computes gradients in them and needs no names.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from farandole.errors import InvalidArgument, sentences
from farandole.named import operations
from farandole.named.compression import Compressor, NoCompression
from farandole.named.handle import Handle
from farandole.named.named_collectives import NamedCollectives
from farandole.named.parameter_names import names_of
from farandole.named.sparse import SparseSum, sparse_all_reduce


class UnfinishedStep(InvalidArgument, AssertionError):
    """backward(), step() and zero_grad() do not follow each other as they must."""


@dataclass(eq=False)
class AveragingOptions:
    """How gradients are combined."""

    named: NamedCollectives
    compression: Compressor = NoCompression
    passes_per_step: int = 1
    """backward() adds up so many gradients, which are then combined."""
    op: str = "average"
    predivide: float = 1.0
    """Averages are sums of gradients divided by it, times it, divided by the number of ranks."""
    groups: int | Sequence[Sequence[Tensor]] | None = None
    """Parameters whose gradients are sent together: how many groups, or which."""
    sparse_as_dense: bool = False
    names: Iterable[tuple[str, Tensor]] | None = None
    """Of all parameters; None: their places in the optimizer."""


@dataclass(eq=False)
class _Unit:
    """Parameters that are sent together."""

    name: str
    parameters: list[Tensor]
    running: Handle | None = None
    sparse: SparseSum | None = None
    contexts: list[Any] = field(default_factory=list)

    @property
    def has_begun(self) -> bool:
        return self.running is not None or self.sparse is not None


def averaging_optimizer(optimizer: Optimizer, options: AveragingOptions) -> Optimizer:
    """An optimizer of the class of ``optimizer`` and with its state, which averages. Collective.

    ``optimizer`` is not to be stepped any more; schedulers that were made of it serve both.
    """
    kind = type(optimizer)
    cls = type(kind.__name__, (AveragingOptimizer, kind), {})
    wrapped: AveragingOptimizer = object.__new__(cls)
    own = {name: value for name, value in vars(optimizer).items() if name != "step"}
    vars(wrapped).update(own)
    wrapped._begin_averaging(options)
    return wrapped


class AveragingOptimizer(Optimizer):
    """What is put before an optimizer's class; see averaging_optimizer()."""

    def _begin_averaging(self, options: AveragingOptions) -> None:
        self._averaging = options
        self._parameter_names = names_of(self.param_groups, options.names)
        self._passes_left: dict[Tensor, int] = {}
        self._synchronized = False
        self._should_synchronize = True
        self._has_gradients = False
        self._hooks: list[Any] = []
        self._units: list[_Unit] = []
        self._unit_of: dict[Tensor, _Unit] = {}
        if not options.named.is_member or options.named.world_size == 1:
            return
        for unit in self._plan_units():
            self._units.append(unit)
            for parameter in unit.parameters:
                self._unit_of[parameter] = unit
        self.set_backward_passes_per_step(options.passes_per_step)
        for parameter in self._unit_of:
            add: Any = parameter.register_post_accumulate_grad_hook
            self._hooks.append(add(self._hook_of(parameter)))

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many gradients add up before they are combined."""
        self._averaging.passes_per_step = passes
        self._passes_left = dict.fromkeys(self._unit_of, passes)

    @property
    def backward_passes_per_step(self) -> int:
        """How many gradients add up before they are combined."""
        return self._averaging.passes_per_step

    def synchronize(self) -> None:
        """Begin what backward has not begun, and wait until all gradients are combined.

        A parameter without a gradient takes part with zeros: another rank may have one.
        """
        for unit in self._units:
            if not unit.has_begun:
                self._begin(unit)
        for unit in self._units:
            self._finish(unit)
        self._reset()
        self._synchronized = True

    @contextmanager
    def skip_synchronize(self) -> Iterator[None]:
        """Let step() take gradients as they are: after synchronize(), and clipping, say."""
        self._should_synchronize = False
        try:
            yield
        finally:
            self._should_synchronize = True

    def step(self, closure: Any = None) -> Any:
        """Combine gradients, then do the step of the optimizer's class."""
        if self._should_synchronize:
            if self._synchronized:
                warnings.warn(
                    "optimizer.step() called without optimizer.skip_synchronize() context after "
                    "optimizer.synchronize(): gradients are combined twice.",
                    stacklevel=2,
                )
            self.synchronize()
        self._synchronized = False
        return super().step(closure) if closure is not None else super().step()

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As the class's.

        Raises:
            UnfinishedStep: gradients are on their way.
        """
        if self._has_gradients:
            raise UnfinishedStep(
                sentences(
                    "averaging-zero-grad",
                    "zero_grad() was called after backward() and before step() or synchronize().",
                    "gradients are on their way to the other ranks.",
                    "call step() or synchronize() first.",
                )
            )
        super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """As the class's; what backward has begun is forgotten."""
        self._reset()
        self._synchronized = False
        self._should_synchronize = True
        super().load_state_dict(*args, **kwargs)

    def _reset(self) -> None:
        self._passes_left = dict.fromkeys(self._unit_of, self._averaging.passes_per_step)
        self._has_gradients = False
        for unit in self._units:
            unit.running, unit.sparse, unit.contexts = None, None, []

    def _plan_units(self) -> list[_Unit]:
        trained = {
            self._parameter_names[each]: each
            for group in self.param_groups
            for each in group["params"]
            if each.requires_grad
        }
        groups = self._averaging.groups
        if groups is None or groups == 0:
            return [_Unit(name, [each]) for name, each in trained.items()]
        lists = _split(list(trained), groups) if isinstance(groups, int) else self._listed(groups)
        grouped = {name for each in lists for name in each}
        lists += [[name] for name in trained if name not in grouped]
        return [
            _Unit(names[0], [trained[name] for name in names])
            for each in lists
            if (names := [name for name in each if name in trained])
        ]

    def _listed(self, groups: Sequence[Sequence[Tensor]]) -> list[list[str]]:
        names = self._parameter_names
        lists = [[names[each] for each in group if each in names] for group in groups]
        flat = [name for each in lists for name in each]
        if len(set(flat)) < len(flat):
            raise InvalidArgument(
                sentences(
                    "averaging-groups",
                    "the optimizer got groups that have a parameter twice.",
                    "gradients of a group travel together, once.",
                    "let each parameter be in one group at most.",
                )
            )
        return lists

    def _hook_of(self, parameter: Tensor) -> Callable[[Tensor], None]:
        unit, name = self._unit_of[parameter], self._parameter_names[parameter]

        def hook(_: Tensor) -> None:
            if self._passes_left[parameter] <= 0:
                raise UnfinishedStep(
                    sentences(
                        "averaging-passes",
                        f"the gradient of '{name}' was computed more than "
                        f"{self._averaging.passes_per_step} times before step().",
                        "it is on its way to the other ranks after so many passes.",
                        "pass a larger backward_passes_per_step to add up gradients of more "
                        "passes.",
                    )
                )
            self._passes_left[parameter] -= 1
            self._has_gradients = True
            if all(self._passes_left[each] == 0 for each in unit.parameters):
                self._begin(unit)

        return hook

    def _begin(self, unit: _Unit) -> None:
        options = self._averaging
        self._has_gradients = True
        gradients = [self._gradient_of(parameter) for parameter in unit.parameters]
        if len(gradients) == 1 and gradients[0].is_sparse:
            unit.sparse = sparse_all_reduce(options.named, gradients[0], unit.name, op=options.op)
            return
        compressed = [options.compression.compress(each) for each in gradients]
        unit.contexts = [context for _, context in compressed]
        unit.running = operations.all_reduce(
            options.named,
            [tensor for tensor, _ in compressed],
            unit.name,
            op=options.op,
            prescale=1.0 / options.predivide,
            postscale=options.predivide,
            in_place=True,
        )

    def _gradient_of(self, parameter: Tensor) -> Tensor:
        if parameter.grad is None:
            parameter.grad = torch.zeros_like(parameter)
        gradient = parameter.grad.detach()
        if gradient.is_sparse and self._averaging.sparse_as_dense:
            return gradient.to_dense()
        return gradient

    def _finish(self, unit: _Unit) -> None:
        if unit.sparse is not None:
            _replace(unit.parameters[0], unit.sparse.wait())
            return
        assert unit.running is not None
        results = self._averaging.named.wait(unit.running)
        for parameter, result, context in zip(unit.parameters, results, unit.contexts, strict=True):
            _replace(parameter, self._averaging.compression.decompress(result, context))


def _replace(parameter: Tensor, combined: Tensor) -> None:
    gradient = parameter.grad
    assert gradient is not None
    with torch.no_grad():
        if gradient.is_sparse:
            sparse = combined if combined.is_sparse else combined.to_sparse(gradient.sparse_dim())
            gradient.zero_().add_(sparse)
        elif gradient.data_ptr() != combined.data_ptr() or gradient.dtype != combined.dtype:
            gradient.copy_(combined)


def _split(names: list[str], count: int) -> list[list[str]]:
    """Lists of names in order, of nearly equal lengths."""
    least, more = divmod(len(names), count)
    ends = [least * (k + 1) + min(k + 1, more) for k in range(count)]
    return [names[begin:end] for begin, end in zip([0, *ends], ends, strict=False)]
