# SPDX-License-Identifier: Apache-2.0
"""Lets a model's forward begin while new parameters come from other ranks."""

from __future__ import annotations

import logging
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from farandole import _C

_logger = logging.getLogger(__name__)

_WATCHED_STEPS = 3


@dataclass(eq=False)
class Unit:
    """A module, and the parameters that it waits for before its forward."""

    module: nn.Module
    parameters: list[nn.Parameter]
    was_called: bool = False
    """Since the last step."""
    is_read_early: bool = False
    """Whether one of its parameters was read before its forward was called in the same pass."""
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
    In the first steps a mode looks at the arguments of operators, too: it finds parameters
    that are read before the forward of their block. Blocks without a call stay untrusted.

    Every other module waits as well, since the program may call it alone or save it: one inside of
    a block for its parameters, one around blocks for those of blocks that are not trusted.
    """

    def __init__(self, root: nn.Module, engine: _C.ShardedOptimizer) -> None:
        self._engine = weakref.ref(engine)  # the model may live longer
        self._lock = threading.Lock()  # forwards may run in several threads
        self._units = [Unit(module, parameters) for module, parameters in _units(root)]
        self._around = [Around(module) for module in _modules(root) if _has_list(module)]
        self._watched = 0  # steps
        self._watches = not any(map(is_compiled, root.modules()))
        self._watching = threading.local()  # its mode, and how deep
        self._choose()
        self._watch_first_steps(root)
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
        self._stop_watching()
        for unit in self._units:
            if any(p.grad is not None for p in unit.parameters):
                reads_itself = unit.was_called and not unit.is_read_early
                if unit.is_trusted and not reads_itself:
                    _warn(unit)
                unit.is_trusted = reads_itself and (unit.is_trusted or self._may_trust)
            unit.was_called = False
        self._watched += 1
        self._choose()

    @property
    def _may_trust(self) -> bool:
        """Whether the pass that ended was looked at, or cannot be."""
        return self._watched < _WATCHED_STEPS or not self._watches

    def _watch_first_steps(self, root: nn.Module) -> None:
        def begin() -> None:
            if torch.compiler.is_compiling():
                return
            if self._depth() == 0 and self._watches and self._may_trust:
                _uncompiled.enter()
                self._watching.mode = _Watch(self._units)
                self._watching.mode.__enter__()
            self._watching.depth = self._depth() + 1

        def end() -> None:
            if torch.compiler.is_compiling():
                return
            self._watching.depth = self._depth() - 1
            if self._depth() <= 0:
                self._stop_watching()

        root.register_forward_hook(Hook(end), always_call=True)
        _add_hook(root, begin)

    def _depth(self) -> int:
        """Forwards of the root under way in this thread: it may call itself."""
        depth: int = getattr(self._watching, "depth", 0)
        return depth

    def _stop_watching(self) -> None:
        """Also where a forward was left without its last hook, as by KeyboardInterrupt."""
        self._watching.depth = 0
        mode = self._watching.__dict__.pop("mode", None)
        if mode is not None:
            mode.__exit__(None, None, None)
            _uncompiled.leave()

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


class _Uncompiled:
    """Functions of torch.compile() run uncompiled while any thread is within.

    In a mode of the dispatcher torch does that by itself, but raises where ``fullgraph=True``.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._count = 0
        self._stance: Any = None

    def enter(self) -> None:
        with self._lock:
            self._count += 1
            if self._count == 1 and "torch._dynamo" in sys.modules:  # a second to import
                self._stance = torch.compiler.set_stance("force_eager")

    def leave(self) -> None:
        with self._lock:
            self._count -= 1
            if self._count == 0 and self._stance is not None:
                self._stance.__exit__(None, None, None)
                self._stance = None


_uncompiled = _Uncompiled()


class _Watch(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """Notes parameters that operators take before the forward of their block.

    A mode of the dispatcher: what only asks for a dtype or a device is no operator.
    """

    def __init__(self, units: list[Unit]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._units_of: dict[int, list[Unit]] = {}
        for unit in units:
            for p in unit.parameters:
                self._units_of.setdefault(id(p), []).append(unit)

    def __torch_dispatch__(
        self,
        func: Callable[..., Any],
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: dict[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        for argument in (*args, *kwargs.values()):
            for each in argument if isinstance(argument, (list, tuple)) else [argument]:
                units = self._units_of.get(id(each), [])
                if not any(unit.was_called for unit in units):
                    for unit in units:
                        unit.is_read_early = True
        return func(*args, **kwargs)


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
