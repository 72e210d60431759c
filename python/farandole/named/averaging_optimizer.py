# SPDX-License-Identifier: Apache-2.0
"""An optimizer whose gradients are averaged over the ranks while backward runs, without a wrapper.

Gradients travel in units of several parameters (gradient_units.py), each under one name, once
backward has added to all of them as often as a step takes passes. The order in which this happens
may differ between ranks. DistributedDataParallel, which knows the model, computes gradients in its
buckets and needs no names.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NoReturn
from weakref import WeakMethod

import torch
import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer

from farandole.errors import CommError, InvalidArgument, NotSupported, sentences
from farandole.named import operations
from farandole.named.compression import Compressor, NoCompression
from farandole.named.gradient_units import Unit, make_home, names_of_groups, plan_units
from farandole.named.handle import Handle
from farandole.named.named_collectives import NamedCollectives
from farandole.named.parameter_names import names_of
from farandole.named.sparse import sparse_all_reduce


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
        self._synchronized = False
        self._should_synchronize = True
        self._units: list[Unit] = []
        self._frozen: list[Tensor] = []
        self._group: dist.ProcessGroup | None = None  # whose memory gradients lie in
        given = options.groups
        groups = (
            given
            if given is None or isinstance(given, int)
            else names_of_groups(given, self._parameter_names)
        )
        self._take_in(self._all_parameters(), groups)

    @property
    def backward_passes_per_step(self) -> int:
        """How many gradients add up before they are combined."""
        return self._averaging.passes_per_step

    def set_backward_passes_per_step(self, passes: int) -> None:
        """Change how many gradients add up before they are combined."""
        self._averaging.passes_per_step = passes
        for unit in self._units:
            if not unit.has_gradients:  # else from the next step on
                unit.reset(passes)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """As the class's; its gradients are averaged too, if all ranks add it. Local."""
        super().add_param_group(param_group)
        place = len(self.param_groups) - 1
        added = self.param_groups[place]["params"]
        for index, parameter in enumerate(added):
            self._parameter_names.setdefault(parameter, f"parameter.{place}.{index}")
        self._take_in(added)

    @property
    def has_travelling_gradients(self) -> bool:
        """Whether those of this step are on their way: p.grad is in flux until synchronize()."""
        return any(unit.has_gradients for unit in self._units)

    def synchronize(self) -> None:
        """Begin what backward has not begun, and wait until all gradients are combined.

        A parameter without a gradient takes part with zeros: another rank may have one.

        Raises:
            CommError: the ranks' gradients do not fit together, or one was lost; then the step is
                forgotten.
        """
        if any(parameter.requires_grad for parameter in self._frozen):
            self._take_in(self._frozen)
        failure: CommError | None = None
        for unit in self._units:
            if not unit.has_begun:
                self._begin(unit, will_wait=True)
        for unit in self._units:
            try:
                self._finish(unit)
            except CommError as error:  # others are on their way, and are waited for
                failure = failure or error
        self._reset()
        if failure is not None:
            raise failure
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
        """Combine gradients, then do the step of the optimizer's class.

        Those that ``closure`` computes are combined too, each time when it is called.
        """
        if not self._should_synchronize:
            self._synchronized = False
            return super().step(closure) if closure is not None else super().step()
        if self._synchronized:
            warnings.warn(
                "optimizer.step() called without optimizer.skip_synchronize() context after "
                "optimizer.synchronize(): gradients are combined twice.",
                stacklevel=2,
            )
        if closure is None:
            self.synchronize()
        result = super().step() if closure is None else super().step(self._averaged(closure))
        self._synchronized = False
        return result

    def _averaged(self, closure: Callable[[], Any]) -> Callable[[], Any]:
        def compute() -> Any:
            loss = closure()
            self.synchronize()
            return self._mean(loss) if isinstance(self, torch.optim.LBFGS) else loss

        return compute

    def _mean(self, loss: Any) -> Tensor:
        """Over the ranks: LBFGS searches by it, and all ranks must find the same."""
        named = self._averaging.named
        mean = torch.as_tensor(loss).detach().clone()
        if self._units:
            named.wait(
                operations.all_reduce(
                    named, [mean], f"{self._units[0].name}.loss", op="average", in_place=True
                )
            )
        return mean

    def zero_grad(self, *args: Any, **kwargs: Any) -> None:
        """As the class's.

        Raises:
            UnfinishedStep: gradients are on their way.
        """
        if self.has_travelling_gradients:
            raise UnfinishedStep(
                sentences(
                    "averaging-zero-grad",
                    "zero_grad() was called after backward() and before step() or synchronize().",
                    "gradients are on their way to the other ranks.",
                    "call step() or synchronize() first, or load_state_dict() to forget them.",
                )
            )
        super().zero_grad(*args, **kwargs)

    def load_state_dict(self, *args: Any, **kwargs: Any) -> None:
        """As the class's; what backward has begun is forgotten.

        The groups stay the same dicts: schedulers of the optimizer that this one was made of have
        them too.
        """
        self._reset()
        self._synchronized = False
        self._should_synchronize = True
        groups = self.param_groups
        super().load_state_dict(*args, **kwargs)
        for own, loaded in zip(groups, self.param_groups, strict=True):
            own.clear()
            own.update(loaded)
        self.param_groups = groups

    def __reduce_ex__(self, protocol: Any) -> NoReturn:
        """Refuse: of copy.deepcopy() and of pickle, as torch.save() uses it."""
        raise NotSupported(
            sentences(
                "averaging-copy",
                "an optimizer that averages gradients was to be copied or pickled.",
                "it belongs to its parameters and to the ranks of this process.",
                "take its state_dict().",
            )
        )

    def _reset(self) -> None:
        for unit in self._units:
            unit.reset(self._averaging.passes_per_step)

    def _all_parameters(self) -> list[Tensor]:
        return [each for group in self.param_groups for each in group["params"]]

    def _take_in(
        self, parameters: Iterable[Tensor], groups: int | Sequence[Sequence[str]] | None = None
    ) -> None:
        """Average the gradients of these from now on; of frozen ones once they are not any more."""
        named = self._averaging.named
        if not named.is_member or named.stays_alone:
            return
        self._leave_old_memory()
        trained = [each for each in parameters if each.requires_grad]
        known = {*trained, *(each for unit in self._units for each in unit.parameters)}
        self._frozen = [each for each in self._all_parameters() if each not in known]
        pairs = [(self._parameter_names[each], each) for each in trained]
        units = list(plan_units(pairs, groups))
        make_home(units)
        arrived = WeakMethod(self._on_arrival)
        for unit in units:
            unit.reset(self._averaging.passes_per_step)
            unit.on_arrival = lambda unit, excess: (arrived() or _ignore)(unit, excess)
        self._units += units

    def _leave_old_memory(self) -> None:
        """If ranks have met anew (NamedCollectives.reopen), leave what the old ones share."""
        group = self._averaging.named.group
        if self._group is not group:
            self._group = group
            make_home(self._units)

    def _on_arrival(self, unit: Unit, excess: int | None) -> None:
        if excess is None:
            self._begin_within_backward(unit)
            return
        raise UnfinishedStep(
            sentences(
                "averaging-passes",
                f"the gradient of '{unit.names[excess]}' was computed more than "
                f"{self._averaging.passes_per_step} times before step().",
                "it is on its way to the other ranks after so many passes.",
                "pass a larger backward_passes_per_step to add up gradients of more passes.",
            )
        )

    def _begin_within_backward(self, unit: Unit) -> None:
        """Reductions overlap with backward, unless they would take the cores that it runs on."""
        named = self._averaging.named
        if not named.shares_host or unit.parameters[0].device.type != "cpu":
            self._begin(unit, will_wait=False)
            return
        self._begin(unit, will_wait=True)
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(named.wake)  # at the end of this backward

    def _begin(self, unit: Unit, will_wait: bool) -> None:
        self._leave_old_memory()
        options = self._averaging
        named = options.named
        may_share = named.shares_host and options.compression is NoCompression
        memory = unit.gathered() if may_share else None
        if memory is None:
            gradients = self._gradients_of(unit)
            may_share = may_share and _may_lie_together(unit, gradients)
            memory = unit.gathered() if may_share else None
            # What other ranks may have gathered is in another order.
            may_share = may_share and not (
                memory is None and unit.has_memory and unit.has_own_order
            )
        tensors = [memory] if memory is not None else self._pack(unit, gradients)
        if tensors:
            wants_memory = may_share and named.shares_memory and not unit.has_memory
            unit.handle = operations.all_reduce(
                named,
                tensors,
                unit.name,
                op=options.op,
                prescale=1.0 / options.predivide,
                postscale=options.predivide,
                in_place=True,
                joins=may_share,
                wants_memory=unit.layout() if wants_memory else "",
                will_wait=will_wait,
            )
        unit.has_begun = True

    def _gradients_of(self, unit: Unit) -> dict[Tensor, Tensor]:
        """Zeros where there is none, but for frozen parameters, which are left out."""
        gradients = {}
        for parameter in unit.parameters:
            if parameter.grad is None and parameter.requires_grad:
                parameter.grad = _zeros_of(parameter, is_sparse=parameter in unit.has_sparse)
            if parameter.grad is not None:
                is_joined = parameter.grad.is_sparse and self._averaging.sparse_as_dense
                gradients[parameter] = parameter.grad.to_dense() if is_joined else parameter.grad
        return gradients

    def _pack(self, unit: Unit, gradients: dict[Tensor, Tensor]) -> list[Tensor]:
        """What travels under the unit's name; sparse gradients travel under their own."""
        tensors = []
        for name, parameter in zip(unit.names, unit.parameters, strict=True):
            gradient = gradients.get(parameter)
            if gradient is None:
                continue
            if gradient.is_sparse:
                options = self._averaging
                unit.has_sparse.add(parameter)
                travels = sparse_all_reduce(options.named, gradient, name, op=options.op)
                unit.sparse.append((parameter, travels))
                continue
            compressed, context = self._averaging.compression.compress(gradient.detach())
            unit.sent.append(parameter)
            unit.contexts.append(context)
            tensors.append(compressed)
        return tensors

    def _finish(self, unit: Unit) -> None:
        if unit.handle is not None:  # first: other ranks may not know of sparse ones
            self._finish_dense(unit, unit.handle)
        for parameter, travels in unit.sparse:
            _replace(parameter, travels.wait())

    def _finish_dense(self, unit: Unit, handle: Handle) -> None:
        results = self._averaging.named.wait(handle)
        unit.settle()
        if handle.memory is not None:
            unit.take_memory(handle.memory)
        for parameter, result, context in zip(unit.sent, results, unit.contexts, strict=False):
            _replace(parameter, self._averaging.compression.decompress(result, context))


def _ignore(unit: Unit, excess: int | None) -> None:
    """The optimizer is gone."""


def _zeros_of(parameter: Tensor, *, is_sparse: bool) -> Tensor:
    """As a gradient; a sparse one is that of an embedding, whose rows are dense."""
    if not is_sparse:
        return torch.zeros_like(parameter)
    indices = torch.zeros((1, 0), dtype=torch.int64, device=parameter.device)
    rows = parameter.new_zeros((0, *parameter.shape[1:])).detach()
    return torch.sparse_coo_tensor(indices, rows, parameter.shape)


def _may_lie_together(unit: Unit, gradients: dict[Tensor, Tensor]) -> bool:
    """Whether the gradients of all parameters can be reduced as one tensor."""
    return (
        unit.is_uniform
        and len(gradients) == len(unit.parameters)
        and not any(each.is_sparse or each.requires_grad for each in gradients.values())
    )


def _replace(parameter: Tensor, combined: Tensor) -> None:
    gradient = parameter.grad
    if gradient is combined:
        return
    if gradient is None:
        parameter.grad = combined
        return
    with torch.no_grad():
        if gradient.is_sparse:
            sparse = combined if combined.is_sparse else combined.to_sparse(gradient.sparse_dim())
            gradient.zero_().add_(sparse)
        elif gradient.data_ptr() != combined.data_ptr() or gradient.dtype != combined.dtype:
            gradient.copy_(combined)
