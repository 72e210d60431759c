# SPDX-License-Identifier: Apache-2.0
"""torch's GradScaler, by the same names, with a verdict that all ranks agree on."""

from __future__ import annotations

import warnings
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import Any, NoReturn, TypeVar, cast

import torch
from torch.amp.grad_scaler import GradScaler as TorchGradScaler
from torch.optim import Optimizer

from farandole import _C, arguments
from farandole.errors import InvalidArgument, sentences
from farandole.optim import ZeroRedundancyOptimizer

_Outputs = TypeVar("_Outputs")
_MOST_STEPS = 2**63 - 1  # C++ counts them so


class GradScaler(TorchGradScaler):
    """Scale the loss, and leave steps out whose gradients have Inf or NaN on any rank.

    It is used as torch.amp.GradScaler is, and isinstance() takes it for one::

        scaler = farandole.GradScaler()
        scaler.scale(loss).backward()
        scaler.step(optimizer)  # optimizer.step(), unless a gradient is Inf or NaN on some rank
        scaler.update()

    A step is taken on every rank or on none, so every rank keeps the same scale; with a
    farandole.ZeroRedundancyOptimizer in both of its modes. Such an optimizer divides gradients
    where step() reads them: p.grad stays scaled, unless unscale_() was called (with
    gradients="shard" it does in any case; clip_grad_norm_() of the optimizer is right).

    State moves between this scaler, torch's and farandole::GradScaler of C++.

    Args:
        device: Where losses are; None: anywhere. With "cuda" and no such device scaling is turned
            off with a warning, as torch does.
        init_scale: The scale at the start.
        growth_factor: On the scale after ``growth_interval`` steps without Inf or NaN.
        backoff_factor: On the scale after a step with one.
        growth_interval: See there.
        enabled: If False, step() is the optimizer's and the rest does nothing.

    Raises:
        InvalidArgument: numbers that cannot be; calls out of order.
    """

    def __init__(
        self,
        device: str | torch.device | None = None,
        init_scale: float = 2.0**16,
        growth_factor: float = 2.0,
        backoff_factor: float = 0.5,
        growth_interval: int = 2000,
        enabled: bool = True,
    ) -> None:
        device_type = torch.device(device).type if device is not None else ""
        if enabled and device_type == "cuda" and not torch.cuda.is_available():
            warnings.warn("this GradScaler is disabled: CUDA is not available.", stacklevel=2)
            enabled = False
        self._device = device_type
        self._enabled = enabled
        self._core = _C.GradScaler(
            arguments.float_of("GradScaler", "init_scale", init_scale),
            arguments.float_of("GradScaler", "growth_factor", growth_factor),
            arguments.float_of("GradScaler", "backoff_factor", backoff_factor),
            arguments.int_of("GradScaler", "growth_interval", growth_interval, _MOST_STEPS),
            bool(enabled),
        )
        self._used: list[Optimizer] = []  # since the last update(); they live until then

    # Steps.

    def scale(self, outputs: _Outputs) -> _Outputs:
        """The outputs times the scale.

        Args:
            outputs: A tensor, or an iterable of such, and so on.
        """
        if not self._enabled:
            return outputs
        return cast(_Outputs, self._scaled(outputs))

    def _scaled(self, outputs: Any) -> Any:
        if isinstance(outputs, torch.Tensor):
            return self._core.scale(outputs)
        if isinstance(outputs, Iterable) and not isinstance(outputs, (str, bytes)):
            scaled = map(self._scaled, outputs)
            return type(outputs)(scaled) if isinstance(outputs, (list, tuple)) else scaled
        raise InvalidArgument(
            sentences(
                "scale-type",
                f"scale() of a GradScaler got {type(outputs).__qualname__}.",
                "it multiplies tensors.",
                "pass a tensor, or an iterable of tensors.",
            )
        )

    def unscale_(self, optimizer: Optimizer) -> None:
        """Divide gradients by the scale before step() would, for clipping and looking at them.

        Collective if the parameters belong to a DistributedDataParallel.

        Args:
            optimizer: Whose gradients; once for each of its steps.
        """
        if self._enabled:
            self._core.unscale_(*self._view(optimizer))

    def step(self, optimizer: Optimizer, *args: Any, **kwargs: Any) -> float | None:
        """Step the optimizer with divided gradients, or on no rank. Collective, as unscale_().

        Args:
            optimizer: Once for each update().
            *args: For its step().
            **kwargs: For its step().

        Returns:
            What its step() returned.
        """
        if not self._enabled:
            return cast(float | None, optimizer.step(*args, **kwargs))
        if kwargs.get("closure") is not None or any(each is not None for each in args):
            raise InvalidArgument(
                sentences(
                    "scaler-closure",
                    "step() of a GradScaler got a closure.",
                    "gradients that the closure computes would not be checked.",
                    "compute the gradients first, and pass only the optimizer.",
                )
            )
        view = self._view(optimizer)
        result: float | None = None
        try:
            if self._core.begin_step(*view):
                with _combined(optimizer):
                    result = optimizer.step(*args, **kwargs)
        except BaseException:
            self._core.abandon_step(id(optimizer))
            raise
        self._core.end_step(id(optimizer))
        return result

    def _view(self, optimizer: Optimizer) -> tuple[int, list[torch.Tensor], Any]:
        """What the C++ scaler has to know of an optimizer, once its gradients are combined."""
        if getattr(optimizer, "has_travelling_gradients", False):  # farandole.named's
            cast(Any, optimizer).synchronize()
        if optimizer not in self._used:
            self._used.append(optimizer)
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        inner = _unwrapped(optimizer)
        engine = inner._engine if isinstance(inner, ZeroRedundancyOptimizer) else None
        return id(optimizer), parameters, engine

    def update(self, new_scale: float | torch.Tensor | None = None) -> None:
        """Lower or raise the scale by what became of the steps since the last call.

        Args:
            new_scale: Sets it instead.
        """
        if not self._enabled:
            return
        self._core.update(None if new_scale is None else _number(new_scale))
        self._used.clear()

    # Numbers.

    def get_scale(self) -> float:
        """The scale; 1 if scaling is not enabled."""
        return self._core.get_scale()

    def get_growth_factor(self) -> float:
        """On the scale when it grows."""
        return self._core.growth_factor

    def set_growth_factor(self, new_factor: float) -> None:
        """Set it.

        Args:
            new_factor: Above 1.
        """
        self._core.growth_factor = arguments.float_of("set_growth_factor", "new_factor", new_factor)

    def get_backoff_factor(self) -> float:
        """On the scale after a step with Inf or NaN."""
        return self._core.backoff_factor

    def set_backoff_factor(self, new_factor: float) -> None:
        """Set it.

        Args:
            new_factor: Below 1.
        """
        name = "set_backoff_factor"
        self._core.backoff_factor = arguments.float_of(name, "new_factor", new_factor)

    def get_growth_interval(self) -> int:
        """Steps without Inf or NaN until the scale grows."""
        return self._core.growth_interval

    def set_growth_interval(self, new_interval: int) -> None:
        """Set it.

        Args:
            new_interval: At least 1.
        """
        name = "set_growth_interval"
        self._core.growth_interval = arguments.int_of(
            name, "new_interval", new_interval, _MOST_STEPS
        )

    def _get_growth_tracker(self) -> int:
        return self._core.state.growth_tracker if self._enabled else 0

    @property
    def _scale(self) -> torch.Tensor | None:  # type: ignore[override]
        """A copy of what torch keeps by that name."""
        return torch.tensor(self.get_scale()) if self._enabled else None

    @property  # the same
    def _growth_tracker(self) -> torch.Tensor | None:  # type: ignore[override]
        return torch.tensor(self._core.state.growth_tracker, dtype=torch.int32)

    # State.

    def state_dict(self) -> dict[str, Any]:
        """What torch's would return; empty if scaling is not enabled. Call it after update()."""
        if not self._enabled:
            return {}
        state = self._core.state
        return {
            "scale": state.scale,
            "growth_factor": state.growth_factor,
            "backoff_factor": state.backoff_factor,
            "growth_interval": state.growth_interval,
            "_growth_tracker": state.growth_tracker,
        }

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Take what this or torch's scaler has saved.

        Args:
            state_dict: Of a scaler that was enabled.

        Raises:
            InvalidArgument: it is empty.
        """
        if not self._enabled:
            return
        if not state_dict:
            raise InvalidArgument(
                sentences(
                    "scaler-empty-state",
                    "load_state_dict() of a GradScaler got an empty state.",
                    "a disabled scaler saves an empty state.",
                    "save the state of an enabled scaler, or make this one with enabled=False.",
                )
            )
        self._core.state = _C.GradScalerState(
            state_dict["scale"],
            state_dict["growth_factor"],
            state_dict["backoff_factor"],
            state_dict["growth_interval"],
            state_dict["_growth_tracker"],
        )

    def __getstate__(self) -> dict[str, Any]:
        if not self._core.is_between_steps:
            raise InvalidArgument(
                sentences(
                    "pickled-scaler",
                    "a GradScaler was pickled or copied in the middle of a step.",
                    "its checks of gradients belong to optimizers of this process.",
                    "pickle or copy it after update().",
                )
            )
        return {"device": self._device, "enabled": self._enabled, "state": self.state_dict()}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self._device = state["device"]
        self._enabled = state["enabled"]
        self._core = _C.GradScaler(2.0**16, 2.0, 0.5, 2000, self._enabled)
        self._used = []
        self.load_state_dict(state["state"])

    # What torch's has within.

    def _check_inf_per_device(self, optimizer: Optimizer) -> NoReturn:  # noqa: ARG002
        raise InvalidArgument(
            sentences(
                "scaler-check",
                "an optimizer asked a farandole.GradScaler for the check of its gradients.",
                "the ranks agree on the check in step(), and it is not kept for each device.",
                "use an optimizer whose step() does not ask the scaler.",
            )
        )


def _combined(optimizer: Any) -> AbstractContextManager[None]:
    """Where step() takes gradients as they are, which _view() has combined."""
    if hasattr(optimizer, "has_travelling_gradients"):
        combined: AbstractContextManager[None] = optimizer.skip_synchronize()
        return combined
    return nullcontext()


def _unwrapped(optimizer: Any) -> Any:
    """The optimizer within what Lightning and Accelerate put around it."""
    inner = getattr(optimizer, "optimizer", None)
    return optimizer if isinstance(optimizer, ZeroRedundancyOptimizer) or inner is None else inner


def _number(new_scale: float | torch.Tensor) -> float:
    if isinstance(new_scale, torch.Tensor) and (new_scale.numel() != 1 or new_scale.requires_grad):
        raise InvalidArgument(
            sentences(
                "scaler-update-tensor",
                f"update() of a GradScaler got a tensor of {new_scale.numel()} elements"
                f"{' that requires grad' if new_scale.requires_grad else ''}.",
                "the scale is one number without gradient.",
                "pass a float, or a tensor of one element without gradient.",
            )
        )
    return arguments.float_of("update", "new_scale", new_scale)
