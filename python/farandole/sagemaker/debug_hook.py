# SPDX-License-Identifier: Apache-2.0
"""The debugger's hook with smdebug's defaults, and the one hook of a process."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Literal

from torch import nn

from farandole import arguments, debugger
from farandole.debugger.json_config import hook_of_json
from farandole.debugger.reduction_config import WITH_ELEMENTS
from farandole.sagemaker import places
from farandole.sagemaker.absent import not_offered

_hook: Hook | None = None


class Hook(debugger.Hook):
    """farandole.debugger.Hook as smdebug has it.

    Without a ReductionConfig all elements are saved, and reductions beside them. Without out_dir
    the files go to /opt/ml/output/tensors. get_hook() returns the hook that was made last.
    """

    def __init__(
        self,
        out_dir: str | os.PathLike[str] | None = None,
        export_tensorboard: bool = False,
        tensorboard_dir: str | os.PathLike[str] | None = None,
        dry_run: bool = False,
        reduction_config: debugger.ReductionConfig | None = None,
        save_config: Any = None,
        include_regex: str | Iterable[str] | None = None,
        include_collections: Iterable[str] | None = None,
        save_all: bool = False,
        include_workers: Literal["one", "all"] = "one",
    ) -> None:
        """As farandole.debugger.Hook.

        Raises:
            InvalidArgument: an argument that cannot be.
            NotSupported: a path of S3; or there is no out_dir, and the default one cannot be
                written.
        """
        for path in (out_dir, tensorboard_dir):
            if path is not None:
                places.refuse_s3(
                    path, "a hook writes into a folder", "pass a folder, and copy it afterwards"
                )
        super().__init__(
            out_dir or places.writable(places.TENSORS, "pass out_dir"),
            export_tensorboard,
            tensorboard_dir,
            dry_run,
            reduction_config or WITH_ELEMENTS,
            save_config,
            include_regex,
            include_collections,
            save_all,
            include_workers,
        )
        set_hook(self)

    @classmethod
    def create_from_json_file(cls, json_file_path: str | os.PathLike[str] | None = None) -> Hook:
        """Make a hook of a SageMaker Debugger configuration.

        Args:
            json_file_path: If None the file that SMDEBUG_CONFIG_FILE_PATH names, or
                /opt/ml/input/config/debughookconfig.json.

        Raises:
            FileNotFoundError: there is no such file.
            InvalidArgument: the file has no configuration.
        """
        return create_hook_from_json_config(cls, json_file_path)

    @property
    def mode(self) -> debugger.ModeKeys:
        """What set_mode() set."""
        return self.get_mode()

    @property
    def worker(self) -> str:
        """The name of this rank in a trial."""
        return f"worker_{self._rank()}"

    def register_hook(self, module: nn.Module) -> None:
        """register_module() by its first name."""
        self.register_module(module)

    def record_trace_events(self, *_values: Any, **_named: Any) -> None:
        """Not supported: the recorder takes spans while they last.

        Raises:
            NotSupported: always.
        """
        raise not_offered(
            "Hook.record_trace_events()",
            "the recorder takes spans while they last, and none of the past",
            "put farandole.profiler.annotate(name) around what takes the time",
        )


def create_hook_from_json_config(
    hook_cls: type[Hook],
    json_config_path: str | os.PathLike[str] | None = None,
    default_values: Mapping[str, Any] | None = None,
) -> Hook:
    """A hook of a class, as Hook.create_from_json_file().

    Args:
        hook_cls: The class.
        json_config_path: As there.
        default_values: HookParameters that count where the file has none.
    """
    path = Path(json_config_path or places.debugger_config())
    return hook_of_json(hook_cls, path, places.TENSORS, default_values)


def get_hook(
    json_config_path: str | os.PathLike[str] | None = None, create_if_not_exists: bool = False
) -> Hook | None:
    """The hook of this process; None if there is none.

    Args:
        json_config_path: As ``json_file_path`` of Hook.create_from_json_file().
        create_if_not_exists: Whether to make it of the configuration file, if there is one.
    """
    path = Path(json_config_path or places.debugger_config())
    if _hook is None and create_if_not_exists and path.exists():
        Hook.create_from_json_file(path)
    return _hook


def set_hook(custom_hook: Hook) -> None:
    """Let get_hook() return it.

    Raises:
        InvalidArgument: it is no hook.
    """
    global _hook
    if not isinstance(custom_hook, Hook):
        raise arguments.wrong("set_hook", "custom_hook", custom_hook, "a Hook of smdebug.pytorch")
    _hook = custom_hook


def del_hook() -> None:
    """Let get_hook() return None. The hook itself goes on."""
    global _hook
    _hook = None
