# SPDX-License-Identifier: Apache-2.0
"""Which steps are saved."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from farandole.debugger import config_json
from farandole.debugger.modes import ModeKeys
from farandole.errors import InvalidArgument, sentences

_DEFAULT_INTERVAL = 500


@dataclass(frozen=True)
class SaveConfigMode:
    """The steps of one mode that are saved.

    A step is saved if ``save_steps`` has it, or if it is a multiple of ``save_interval`` from
    ``start_step`` on and before ``end_step``.
    """

    save_interval: int = _DEFAULT_INTERVAL
    start_step: int = 0
    end_step: int | None = None
    save_steps: Sequence[int] = ()

    def __post_init__(self) -> None:
        if not isinstance(self.save_interval, int) or self.save_interval < 1:
            raise InvalidArgument(
                sentences(
                    "debugger-save-interval",
                    f"SaveConfig got save_interval={self.save_interval!r}.",
                    "it is the number of steps between two that are saved.",
                    "pass a whole number of at least 1.",
                )
            )

    @classmethod
    def from_dict(cls, params: Mapping[str, Any]) -> SaveConfigMode:
        """Steps of their arguments, as to_json_dict() has them.

        Raises:
            InvalidArgument: ``params`` has other keys, or an interval that cannot be.
        """
        names = [field.name for field in fields(cls)]
        return cls(**config_json.checked(cls.__name__, params, names))

    def to_json_dict(self) -> dict[str, Any]:
        """Its arguments by their names."""
        return {
            "save_interval": self.save_interval,
            "start_step": self.start_step,
            "end_step": self.end_step,
            "save_steps": list(self.save_steps),
        }

    def should_save_step(self, step: int) -> bool:
        """Whether ``step`` is saved."""
        if step in self.save_steps:
            return True
        is_before_end = self.end_step is None or step < self.end_step
        return self.start_step <= step and is_before_end and step % self.save_interval == 0


class SaveConfig:
    """The steps that are saved.

    They are the same in all modes, or others in each::

        SaveConfig(save_interval=100)
        SaveConfig({ModeKeys.TRAIN: SaveConfigMode(100), ModeKeys.EVAL: SaveConfigMode(1)})

    In a collection's SaveConfig, modes that are left out are saved as the hook's SaveConfig says.
    """

    def __init__(
        self,
        mode_save_configs: Mapping[ModeKeys, SaveConfigMode | None] | None = None,
        save_interval: int | None = None,
        start_step: int | None = None,
        end_step: int | None = None,
        save_steps: Sequence[int] | None = None,
    ) -> None:
        if mode_save_configs is None:
            steps = SaveConfigMode(
                _DEFAULT_INTERVAL if save_interval is None else save_interval,
                start_step or 0,
                end_step,
                tuple(save_steps or ()),
            )
            mode_save_configs = dict.fromkeys(ModeKeys, steps)
        if not _is_of_modes(mode_save_configs):
            raise _no_save_config(mode_save_configs)
        self.mode_save_configs = {mode: mode_save_configs.get(mode) for mode in ModeKeys}

    @classmethod
    def parse(cls, config: Any) -> SaveConfig:
        """A SaveConfig of what ``Hook(save_config=)`` takes: one, a SaveConfigMode or a mapping.

        Raises:
            InvalidArgument: it is something else.
        """
        if config is None or isinstance(config, SaveConfig):
            return config or cls()
        if isinstance(config, SaveConfigMode):
            return cls(dict.fromkeys(ModeKeys, config))
        if isinstance(config, Mapping):
            return cls(config)
        raise _no_save_config(config)

    @classmethod
    def from_dict(cls, params: Mapping[Any, Any]) -> SaveConfig:
        """A config of its arguments, or of the steps of each mode as to_json_dict() has them.

        Raises:
            InvalidArgument: ``params`` has other keys, or an interval that cannot be.
        """
        named = {
            key.name if isinstance(key, ModeKeys) else str(key): value
            for key, value in config_json.checked(cls.__name__, params).items()
        }
        if not set(named) & {mode.name for mode in ModeKeys}:
            return cls(dict.fromkeys(ModeKeys, SaveConfigMode.from_dict(named)))
        config_json.checked(cls.__name__, named, [mode.name for mode in ModeKeys])
        return cls({ModeKeys[name]: _steps_of(value) for name, value in named.items()})

    @classmethod
    def from_json(cls, text: str) -> SaveConfig:
        """A config of what to_json() has returned; raises as from_dict()."""
        return cls.from_dict(config_json.object_of(cls.__name__, text))

    def to_json_dict(self) -> dict[str, Any]:
        """The steps by the names of modes; None for modes that are left out."""
        return {
            mode.name: steps and steps.to_json_dict()
            for mode, steps in self.mode_save_configs.items()
        }

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_json_dict())

    def merged(self, default: SaveConfig) -> SaveConfig:
        """This one, with ``default``'s steps in modes that it leaves out."""
        return SaveConfig(
            {
                mode: steps or default.mode_save_configs[mode]
                for mode, steps in self.mode_save_configs.items()
            }
        )

    def get_save_config(self, mode: ModeKeys) -> SaveConfigMode | None:
        """The steps of a mode; None if it is left out."""
        return self.mode_save_configs[mode]

    def set_save_config(self, mode: ModeKeys, save_config_mode: SaveConfigMode) -> None:
        """Choose the steps of a mode."""
        self.mode_save_configs[mode] = save_config_mode

    def should_save_step(self, mode: ModeKeys, step: int) -> bool:
        """Whether ``step`` of ``mode`` is saved."""
        return (self.mode_save_configs[mode] or SaveConfigMode()).should_save_step(step)


def _steps_of(value: Any) -> SaveConfigMode | None:
    if value is None or isinstance(value, SaveConfigMode):
        return value
    return SaveConfigMode.from_dict(value)


def _is_of_modes(configs: Any) -> bool:
    return isinstance(configs, Mapping) and all(
        isinstance(mode, ModeKeys) and (steps is None or isinstance(steps, SaveConfigMode))
        for mode, steps in configs.items()
    )


def _no_save_config(config: Any) -> InvalidArgument:
    return InvalidArgument(
        sentences(
            "debugger-save-config",
            f"save_config is {config!r}.",
            "it is not a SaveConfig.",
            "pass a SaveConfig, a SaveConfigMode, or a dictionary of SaveConfigMode by ModeKeys.",
        )
    )
