# SPDX-License-Identifier: Apache-2.0
"""Hooks from the JSON files that SageMaker Debugger is configured by.

``LocalPath`` is the hook's out_dir. ``HookParameters`` has its arguments as text, lists separated
by commas; ``CollectionConfigurations`` has the same for each collection. Which steps are saved may
be told for each mode: ``train.save_interval``.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from farandole.debugger.modes import ModeKeys
from farandole.debugger.reduction_config import ReductionConfig
from farandole.debugger.save_config import SaveConfig, SaveConfigMode
from farandole.errors import InvalidArgument, sentences
from farandole.foreign_text import json_of
from farandole.logs import LOGGER

if TYPE_CHECKING:
    from farandole.debugger.hook import Hook

_Hook = TypeVar("_Hook", bound="Hook")
_STEP_KEYS = ("save_interval", "start_step", "end_step")
_OF_STEPS = {
    f"{prefix}{key}"
    for prefix in ("", *(f"{mode.name.lower()}." for mode in ModeKeys))
    for key in (*_STEP_KEYS, "save_steps")
}
_OF_BOTH = {"include_regex", "reductions", "save_raw_tensor"} | _OF_STEPS
_OF_A_HOOK = {"export_tensorboard", "tensorboard_dir", "save_all", "include_workers"} | _OF_BOTH


def hook_of_json(
    cls: type[_Hook],
    path: Path,
    out_dir: Path | None = None,
    default_values: Mapping[str, Any] | None = None,
) -> _Hook:
    """The hook that the file describes.

    Args:
        cls: Its class.
        path: Of the file.
        out_dir: Counts if the file has no LocalPath.
        default_values: HookParameters that count where the file has none.

    Raises:
        FileNotFoundError: there is no such file.
        InvalidArgument: the file has no configuration.
    """
    try:
        config = json_of(path.read_bytes())
        if out_dir is not None:
            config.setdefault("LocalPath", out_dir)
        config["HookParameters"] = {
            **(default_values or {}),
            **(config.get("HookParameters") or {}),
        }
        return _hook_of(cls, config)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        if isinstance(error, (InvalidArgument, FileNotFoundError)):
            raise
        raise InvalidArgument(
            sentences(
                "debugger-json",
                f"'{path}' does not configure a hook.",
                f"{type(error).__name__}: {error}.",
                "write a JSON object with LocalPath, HookParameters and CollectionConfigurations.",
            )
        ) from error


def _hook_of(cls: type[_Hook], config: dict[str, Any]) -> _Hook:
    parameters = config["HookParameters"]
    collections = config.get("CollectionConfigurations")
    _warn_of_unknown("HookParameters", parameters, _OF_A_HOOK)
    hook = cls(
        config["LocalPath"],
        export_tensorboard=_truth(parameters.get("export_tensorboard")),
        tensorboard_dir=parameters.get("tensorboard_dir"),
        reduction_config=_reductions(parameters),
        save_config=_steps(parameters, {}),
        include_regex=_words(parameters.get("include_regex")) or None,
        include_collections=[each["CollectionName"] for each in collections or ()],
        save_all=_truth(parameters.get("save_all")),
        include_workers=parameters.get("include_workers", "one"),
    )
    for each in collections or ():
        own = each.get("CollectionParameters") or {}
        _warn_of_unknown(f"the collection {each['CollectionName']!r}", own, _OF_BOTH)
        collection = hook.get_collection(each["CollectionName"])
        collection.include(_words(own.get("include_regex")))
        collection.save_config = _steps(own, parameters)
        collection.reduction_config = _reductions(own) or collection.reduction_config
    return hook


def _warn_of_unknown(where: str, parameters: dict[str, Any], known: set[str]) -> None:
    unknown = ", ".join(sorted(parameters.keys() - known))
    if unknown:
        LOGGER.warning("the debugger's configuration: %s has no parameter %s", where, unknown)


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _truth(value: Any) -> bool:
    return str(value).lower() in ("true", "1")


def _reductions(parameters: dict[str, Any]) -> ReductionConfig | None:
    whole = _truth(parameters.get("save_raw_tensor"))
    if "reductions" not in parameters and not whole:
        return None
    return ReductionConfig.of_list(_words(parameters.get("reductions")), whole)


def _steps(own: dict[str, Any], default: dict[str, Any]) -> SaveConfig:
    return SaveConfig({mode: _steps_of_mode(mode, own, default) for mode in ModeKeys})


def _steps_of_mode(mode: ModeKeys, own: dict[str, Any], default: dict[str, Any]) -> SaveConfigMode:
    def find(key: str) -> Any:
        for parameters in (own, default):
            for name in (f"{mode.name.lower()}.{key}", key):
                if name in parameters:
                    return parameters[name]
        return None

    numbers = {key: int(find(key)) for key in _STEP_KEYS if find(key) is not None}
    return SaveConfigMode(save_steps=[int(word) for word in _words(find("save_steps"))], **numbers)
