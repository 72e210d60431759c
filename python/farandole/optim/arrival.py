# SPDX-License-Identifier: Apache-2.0
"""Lets a model's forward begin while new parameters come from other ranks."""

from __future__ import annotations

import logging
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import nn

from farandole import _C

_logger = logging.getLogger(__name__)


@dataclass(eq=False)
class Unit:
    """A module, and the parameters that it waits for before its forward."""

    module: nn.Module
    parameters: list[nn.Parameter]
    was_called: bool = False
    """Since the last step."""
    is_trusted: bool = False
    """Whether its parameters are known to be read in its forward alone; else the root waits."""


class Around:
    """A module around blocks, and the parameters that it waits for before its forward."""

    def __init__(self, module: nn.Module) -> None:
        self.module = module
        self.modules = set(module.modules())
        self.waits_for: list[nn.Parameter] = []


class Arrival:
    """Waits of the modules of one model for the parameters of one optimizer.

    Each block of the model (an element of an nn.Sequential or nn.ModuleList, or another child of
    what has such lists) waits for its own parameters, so that the first blocks run while those of
    the last ones are on their way. A block is trusted to do so once a backward has given gradients
    to parameters of it whose forward was called: parameters that are read past their module, such
    as ``linear(x, self.projection.weight)``, show themselves by that, and the root waits for them.

    Every other module waits as well, since the program may call it alone or save it: one inside of
    a block for its parameters, one around blocks for those of blocks that are not trusted.
    """

    def __init__(self, root: nn.Module, engine: _C.ShardedOptimizer) -> None:
        self._engine = weakref.ref(engine)  # the model may live longer
        self._lock = threading.Lock()  # forwards may run in several threads
        self._units = [Unit(module, parameters) for module, parameters in _units(root)]
        self._around = [Around(module) for module in _modules(root) if _has_list(module)]
        self._choose()
        for module in root.modules():
            module.register_state_dict_pre_hook(Hook(self.wait))  # type: ignore[no-untyped-call]
            module.register_load_state_dict_pre_hook(Hook(self.wait))  # type: ignore[no-untyped-call]
        for unit in self._units:
            _add_hook(unit.module, lambda unit=unit: self._begin(unit))  # type: ignore[misc]
        for around in self._around:
            _add_hook(around.module, lambda each=around: self._wait_for(each.waits_for))  # type: ignore[misc]
        known = {each.module for each in self._units} | {each.module for each in self._around}
        for module in _modules(root):
            if module not in known and (inside := list(module.parameters())):
                _add_hook(module, lambda inside=inside: self._wait_for(inside))  # type: ignore[misc]

    def note_gradients(self) -> None:
        """Before a step: finds out which modules read their parameters themselves."""
        for unit in self._units:
            has_gradient = any(p.grad is not None for p in unit.parameters)
            if has_gradient and unit.is_trusted != unit.was_called:
                if unit.is_trusted:
                    _warn(unit)
                unit.is_trusted = unit.was_called
            unit.was_called = False
        self._choose()

    def _choose(self) -> None:
        for around in self._around:
            around.waits_for = [
                p
                for unit in self._units
                if not unit.is_trusted and unit.module in around.modules
                for p in unit.parameters
            ]

    def _begin(self, unit: Unit) -> None:
        unit.was_called = True
        self._wait_for(unit.parameters)

    def _wait_for(self, parameters: Sequence[nn.Parameter]) -> None:
        if torch.compiler.is_compiling():
            self.wait()  # a graph would keep what is_sending says now
            return
        engine = self._engine()
        if engine is not None and engine.is_sending:
            with self._lock:
                engine.wait_for(list(parameters))

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def wait(self) -> None:
        """Return when all parameters are here."""
        engine = self._engine()
        if engine is not None:
            with self._lock:
                engine.wait()


class Hook:
    """A hook of a module. In copies of the module, and where it is unpickled, it does nothing."""

    def __init__(self, call: Callable[[], None]) -> None:
        self._call = call

    def __call__(self, *_: object) -> None:
        """Leaves inputs and results as they are."""
        self._call()

    def __reduce__(self) -> tuple[Callable[[], Hook], tuple[()]]:
        return _idle_hook, ()


def _idle_hook() -> Hook:
    return Hook(lambda: None)


def _add_hook(module: nn.Module, call: Callable[[], None]) -> None:
    if not compiles_itself(module):
        module.register_forward_pre_hook(Hook(call), prepend=True)


def is_compiled(module: nn.Module) -> bool:
    """Whether torch.compile(module) made it, or module.compile() was called."""
    return hasattr(module, "_orig_mod") or compiles_itself(module)


def compiles_itself(module: nn.Module) -> bool:
    """Whether its hooks are a part of what it compiles, which does not notice later ones."""
    return module._compiled_call_impl is not None


def _modules(root: nn.Module) -> Iterator[nn.Module]:
    """All modules, each once, but what is inside of compiled ones."""
    seen = set()
    waiting = [root]
    while waiting:
        module = waiting.pop()
        if module not in seen:
            seen.add(module)
            yield module
            if not is_compiled(module):
                waiting += module.children()


def _units(root: nn.Module) -> Iterator[tuple[nn.Module, list[nn.Parameter]]]:
    """Modules, and the parameters that each waits for; all parameters are in at least one."""
    if not _has_list(root):
        yield root, list(root.parameters())
        return
    own = list(root.parameters(recurse=False))
    for child in root.children():
        if isinstance(child, (nn.ParameterList, nn.ParameterDict)):
            own += child.parameters()
        else:
            yield from _units(child)
    if own:
        yield root, own


def _has_list(module: nn.Module) -> bool:
    """Whether it is or has a list of modules, which are called one after the other."""
    if is_compiled(module):
        return False
    return isinstance(module, (nn.Sequential, nn.ModuleList)) or any(
        _has_list(each) for each in module.children()
    )


def _warn(unit: Unit) -> None:
    _logger.warning(
        "ZeroRedundancyOptimizer: parameters of a %s got gradients though its forward was not "
        "called, so they may have been read before they had arrived; from now on the whole model "
        "waits for them. Pass overlap_with_ddp=False if a step may read parameters in other ways.",
        type(unit.module).__qualname__,
    )
