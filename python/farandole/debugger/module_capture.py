# SPDX-License-Identifier: Apache-2.0
"""What modules of a training take, return and learn, in the steps that are saved."""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.hooks import RemovableHandle

from farandole.checkpoint.names import bare, plain
from farandole.ddp.outputs import find_tensors
from farandole.debugger.unhooked import Unhooked

Save = Callable[[str, Tensor], None]
"""Takes the name and the value of a tensor; it decides whether it is saved."""


class ModuleCapture:
    """Looks at a module during one step, between start() and stop(); does nothing else.

    Hooks of Python are only on the modules in between. Gradients are p.grad at the end of a
    backward, after DistributedDataParallel has averaged: what the optimizer would get then.
    Threads: start() and stop() come from the caller's; backward calls ``save`` on its own.
    """

    def __init__(self, module: nn.Module, save: Save, flush: Callable[[], None]) -> None:
        """Watch ``module``, which may be wrapped.

        Args:
            module: What the program calls in each step.
            save: What gets the tensors.
            flush: Called when forward has ended, and when backward has.
        """
        own = bare(module)
        self.class_name = type(own).__name__
        self.names = weakref.WeakKeyDictionary(
            {each: plain(name) for name, each in own.named_modules()}
        )
        self.names[own] = self.class_name
        self._module, self._own = weakref.ref(module), weakref.ref(own)
        self._save, self._flush = save, flush
        self._handles: list[RemovableHandle] = []
        self._uses: dict[str, int] = {}
        self._backward_is_awaited = False

    def __deepcopy__(self, memo: dict[int, Any]) -> ModuleCapture:
        """Itself: copies of the module are not looked at."""
        return self

    def __reduce__(self) -> Any:
        """Nothing, as `Hook`."""
        return Unhooked, ()

    def start(self, *, parameters: bool) -> None:
        """A saved step begins; called before the module's forward."""
        module, own = self._module(), self._own()
        if module is None or own is None:
            return
        for each in self.names:
            self._handles.append(each.register_forward_hook(self._after_forward))
        self._handles.append(module.register_forward_hook(self._after_module))
        if parameters:
            for name, parameter in own.named_parameters():
                self._save(f"{self.class_name}_{plain(name)}", parameter)

    def stop(self) -> None:
        """The step has ended."""
        for handle in self._handles:
            handle.remove()
        self._handles.clear()
        self._uses.clear()
        self._backward_is_awaited = False

    def _after_forward(self, module: nn.Module, inputs: Any, outputs: Any) -> None:
        name = self.names.get(module)
        if name is None:  # a copy of the module, made within the step
            return
        self._save_all(f"{name}_input_", inputs)
        self._save_all(f"{name}_output_", outputs)

    def _save_all(self, prefix: str, values: Any) -> None:
        """Number the tensors of all calls in this step."""
        if isinstance(values, (tuple, list)):
            for value in values:
                self._save_all(prefix, value)
        elif isinstance(values, Tensor):
            number = self._uses.get(prefix, 0)
            self._uses[prefix] = number + 1
            self._save(f"{prefix}{number}", values)

    def _after_module(self, module: nn.Module, _inputs: Any, outputs: Any) -> None:
        if module is not self._module():  # a copy of it
            return
        if torch.is_grad_enabled():
            for tensor in find_tensors(outputs):
                if tensor.requires_grad:
                    handle: Any = tensor.register_hook(self._backward_begins)  # type: ignore[no-untyped-call]
                    self._handles.append(handle)
        self._flush()

    # DistributedDataParallel queues the end of its averaging later in backward than this, and the
    # engine runs the queue in its order, with what is added meanwhile at its end.

    def _backward_begins(self, _gradient: Tensor) -> None:
        if not self._backward_is_awaited:
            self._backward_is_awaited = True
            self._queue(lambda: self._queue(self._after_backward))

    def _queue(self, call: Callable[[], None]) -> None:
        engine: Any = torch.autograd.Variable._execution_engine
        engine.queue_callback(call)

    def _after_backward(self) -> None:
        self._backward_is_awaited = False
        own = self._own()
        if own is None or not self._handles:
            return
        for name, parameter in own.named_parameters():
            if parameter.grad is not None:
                self._save(f"gradient/{self.class_name}_{plain(name)}", parameter.grad)
        self._flush()
