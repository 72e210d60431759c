# SPDX-License-Identifier: Apache-2.0
"""Saves tensors of a training while it runs."""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Literal

import torch
import torch.distributed as dist
from torch import Tensor, nn

from farandole.debugger.built_in_collections import SAVED_WHOLE, CollectionKeys
from farandole.debugger.collection import Collection
from farandole.debugger.collection_set import CollectionSet
from farandole.debugger.modes import ModeKeys
from farandole.debugger.module_capture import ModuleCapture
from farandole.debugger.recorder import Position, Recorder
from farandole.debugger.reduction_config import DEFAULT as DEFAULT_REDUCTIONS
from farandole.debugger.reduction_config import ReductionConfig
from farandole.debugger.save_config import SaveConfig
from farandole.debugger.step_counter import StepCounter
from farandole.debugger.tensorboard import TensorBoardWriter
from farandole.debugger.unhooked import Unhooked
from farandole.errors import InvalidArgument, NotSupported, sentences
from farandole.rule_actions import STOP_FILE

_WITHOUT_PARAMETERS = (CollectionKeys.LOSSES, CollectionKeys.GRADIENTS)


class Hook:
    """Save tensors of a training into files, for rules and notebooks to read.

    It is made once and given the modules::

        hook = farandole.debugger.Hook("debug", include_collections=["gradients"])
        hook.register_module(model)
        hook.register_loss(criterion)

    A step begins with each forward of the registered module. Parameters are those before the step;
    gradients are p.grad at the end of backward: averages of all ranks with DistributedDataParallel,
    and multiplied by the loss scale if a GradScaler is in use. Names are ``Net_fc.weight``,
    ``gradient/Net_fc.weight``, ``fc_input_0``, ``fc_output_0``, ``CrossEntropyLoss_output_0``.

    Losses are always saved. Of other tensors reductions are saved unless a ReductionConfig asks
    for all elements; built-in collections of activations have all elements.

    Threads: the one that trains. Nothing is sent to other ranks.
    """

    def __init__(
        self,
        out_dir: str | os.PathLike[str],
        export_tensorboard: bool = False,
        tensorboard_dir: str | os.PathLike[str] | None = None,
        dry_run: bool = False,
        reduction_config: ReductionConfig | None = None,
        save_config: SaveConfig | Any = None,
        include_regex: str | Iterable[str] | None = None,
        include_collections: Iterable[str] | None = None,
        save_all: bool = False,
        include_workers: Literal["one", "all"] = "one",
    ) -> None:
        """Make it; files are begun by the first step that is saved.

        Args:
            out_dir: Where the files go; a training that goes on appends to what is there.
            export_tensorboard: Whether single numbers, such as losses, go to TensorBoard too.
            tensorboard_dir: Where; ``tensorboard`` in ``out_dir`` if None.
            dry_run: Whether to write nothing.
            reduction_config: What is saved of a tensor; that of its collection comes first.
            save_config: Which steps; a SaveConfig, a SaveConfigMode or a dictionary by ModeKeys.
                That of a collection comes first. Every 500th step if None.
            include_regex: Tensors to save, in the collection "default".
            include_collections: Names of collections to save.
            save_all: Whether all tensors are saved.
            include_workers: "one" for rank 0 alone, or "all".

        Raises:
            InvalidArgument: an argument that cannot be.
            NotSupported: TensorBoard is not installed.
        """
        if include_workers not in ("one", "all"):
            raise InvalidArgument(
                sentences(
                    "debugger-workers",
                    f"Hook got include_workers={include_workers!r}.",
                    "either rank 0 alone saves tensors, or all ranks do.",
                    'pass "one" or "all".',
                )
            )
        self.out_dir = Path(out_dir)
        self.reduction_config = reduction_config or DEFAULT_REDUCTIONS
        self._saves_all_workers = include_workers == "all"
        self._collections = CollectionSet(
            SaveConfig.parse(save_config), include_regex, include_collections, save_all
        )
        self._tensorboard: TensorBoardWriter | None = None
        if export_tensorboard or tensorboard_dir is not None:
            self._tensorboard = TensorBoardWriter(tensorboard_dir or self.out_dir / "tensorboard")
        self._captures: list[ModuleCapture] = []
        self._roots: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._losses: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._parts: weakref.WeakSet[nn.Module] = weakref.WeakSet()
        self._steps = StepCounter(self.folder)
        self._saving: list[Collection] | None = None  # of this step; None: not looked yet
        self._recorder = Recorder(self.folder, dry_run=dry_run)
        self._is_new = True
        self._process = os.getpid()
        self._known_rank = 0
        atexit.register(self.close)

    @classmethod
    def create_from_json_file(cls, json_file_path: str | os.PathLike[str]) -> Hook:
        """Make a hook of a SageMaker Debugger configuration.

        Raises:
            InvalidArgument: the file has none.
        """
        from farandole.debugger.json_config import hook_of_json

        return hook_of_json(cls, Path(json_file_path))

    @property
    def folder(self) -> Path:
        """Where the files are."""
        return self.out_dir / "tensors"

    @property
    def stop_file(self) -> Path:
        """What the action StopTraining creates: ``CheckpointOnSignal(file=hook.stop_file)``."""
        return self.out_dir / STOP_FILE

    # Collections.

    def get_collection(self, name: str, create: bool = True) -> Collection:
        """The collection ``name``; a new one if there is none.

        Raises:
            InvalidArgument: there is none, and ``create`` is False.
        """
        return self._collections.get(name, create)

    def get_collections(self) -> dict[str, Collection]:
        """All collections by name."""
        return self._collections.by_name

    def add_collection(self, collection: Collection | str) -> None:
        """Add a collection, in place of one of the same name. It is saved if it is included."""
        self._collections.add(Collection(collection) if isinstance(collection, str) else collection)

    # Modules.

    def register_module(self, module: nn.Module) -> None:
        """Save tensors of a module, its parts and its parameters; wrapped ones are unwrapped.

        Raises:
            InvalidArgument: it is no module, or is registered already, or another one is.
            NotSupported: it is of torch.jit.script().
        """
        self._check_new("register_module", module)
        if len(self._roots):
            raise InvalidArgument(
                sentences(
                    "debugger-second-module",
                    f"register_module() got a second module, a {type(module).__name__}.",
                    "each forward of the registered module is a step, and names of two would mix.",
                    "make a hook with a folder of its own for each model.",
                )
            )
        if isinstance(module, torch.jit.ScriptModule):
            raise NotSupported(
                sentences(
                    "debugger-scripted",
                    f"register_module() got a {type(module).__name__}.",
                    "modules of torch.jit.script() take no hooks.",
                    "register the module before it is scripted, or use save_tensor().",
                )
            )
        capture = ModuleCapture(module, self._offer, self._flush)
        for part, name in capture.names.items():
            self._parts.add(part)
            self._collections.add_module(part, name)
        self._collections.add_root(capture.class_name)
        self._captures.append(capture)
        self._roots.add(module)
        module.register_forward_pre_hook(self._begin_step)

    def register_loss(self, loss_module: nn.Module) -> None:
        """Save what a loss module takes and returns, under the name of its class.

        Raises:
            InvalidArgument: it is no module, or is registered already.
        """
        self._check_new("register_loss", loss_module)
        self._collections.add_module(loss_module, type(loss_module).__name__)
        self._losses.add(loss_module)
        loss_module.register_forward_hook(self._after_loss)

    def _check_new(self, call: str, module: Any) -> None:
        known = (self._roots, self._losses, self._parts)
        if isinstance(module, nn.Module) and not any(module in each for each in known):
            return
        what = "again" if isinstance(module, nn.Module) else "which is no module"
        raise InvalidArgument(
            sentences(
                "debugger-module",
                f"{call}() got a {type(module).__name__}, {what}.",
                "each module has one name and is looked at once in a step.",
                "register the outermost torch.nn.Module once.",
            )
        )

    # Steps.

    def set_mode(self, mode: ModeKeys) -> None:
        """Say what the next steps are for.

        Raises:
            InvalidArgument: it is not one of ModeKeys.
        """
        if not isinstance(mode, ModeKeys):
            raise InvalidArgument(
                sentences(
                    "debugger-mode",
                    f"set_mode() got {mode!r}.",
                    "each step is one of training, evaluation, prediction, or of no mode.",
                    "pass a member of farandole.debugger.ModeKeys.",
                )
            )
        if mode != self._steps.mode:
            self._end_step()
            self._steps.mode = mode
            self._saving = None

    def get_mode(self) -> ModeKeys:
        """What set_mode() set; GLOBAL before."""
        return self._steps.mode

    @property
    def step(self) -> int:
        """The present step, of all modes together; -1 before the first."""
        return self._steps.step_of(ModeKeys.GLOBAL)

    def state_dict(self) -> dict[str, int]:
        """The steps so far, to be saved with a checkpoint."""
        return self._steps.state_dict()

    def load_state_dict(self, state: dict[str, int]) -> None:
        """Go on with the step after those of ``state``.

        Without it a hook goes on after the last step that is in the files.

        Raises:
            InvalidArgument: ``state`` is not what state_dict() has returned.
        """
        self._steps.load_state_dict(state)

    def _begin_step(self, module: nn.Module, _inputs: Any) -> None:
        """Before forward of a registered module."""
        if module not in self._roots:  # a copy of it
            return
        self._forget_stop()
        self._end_step()
        self._steps.advance()
        self._saving = None
        saving = self._saved_collections()
        if saving and self._writes():
            parameters = any(each.name not in _WITHOUT_PARAMETERS for each in saving)
            for capture in self._captures:
                capture.start(parameters=parameters)

    def _end_step(self) -> None:
        for capture in self._captures:
            capture.stop()
        if self._saving and self._writes():
            self._collections.warn_of_empty()
        self._flush()
        self._recorder.complete()

    def _saved_collections(self) -> list[Collection]:
        if self._saving is None:
            self._saving = self._collections.of_step(self._steps.mode, self._mode_step())
        return self._saving

    def _mode_step(self) -> int:
        return max(self._steps.step_of(self._steps.mode), 0)

    def should_save_tensor_or_collection(self, tensor_name: str, collection_name: str) -> bool:
        """Whether the tensor, or one of the collection, is saved in the present step."""
        saving = self._saved_collections()
        return any(each.name == collection_name or each.has(tensor_name) for each in saving)

    # Tensors.

    def save_tensor(
        self,
        tensor_name: str,
        tensor_value: Any,
        collections_to_write: str | Iterable[str] = CollectionKeys.DEFAULT,
    ) -> None:
        """Save all elements of a tensor, in steps that one of its collections saves."""
        if isinstance(collections_to_write, str):
            collections_to_write = [collections_to_write]
        collections = [self.get_collection(name) for name in collections_to_write]
        for collection in collections:
            collection.add_tensor_name(tensor_name)
        mode, step = self._steps.mode, self._mode_step()
        if self._writes() and any(
            self._collections.is_saved(each, mode, step) for each in collections
        ):
            self._recorder.take(tensor_name, torch.as_tensor(tensor_value), (), elements=True)
            self._flush()

    def record_tensor_value(self, tensor_name: str, tensor_value: Tensor) -> None:
        """Save what a function returned (as ``F.mse_loss``), named ``<tensor_name>_output_0``."""
        if self._writes():
            self._offer(f"{tensor_name}_output_0", tensor_value)
            self._flush()

    def save_scalar(
        self,
        name: str,
        value: Any,
        sm_metric: bool = False,  # noqa: ARG002 (smdebug's)
        timestamp: float | None = None,
    ) -> None:
        """Save a number as ``scalar/<name>``, in every step. ``sm_metric`` is without effect.

        Raises:
            InvalidArgument: it is more than one number.
        """
        is_float = isinstance(value, float)
        tensor = torch.as_tensor(value, dtype=torch.float64 if is_float else None)
        if tensor.numel() != 1:
            raise InvalidArgument(
                sentences(
                    "debugger-scalar",
                    f"save_scalar({name!r}) got {tensor.numel()} numbers.",
                    "a scalar is one number.",
                    "reduce it, or use save_tensor().",
                )
            )
        if self._writes():
            self._recorder.take(f"scalar/{name}", tensor, (), elements=True)
            self._flush(timestamp)

    def _after_loss(self, module: nn.Module, inputs: tuple[Any, ...], output: Any) -> None:
        if module in self._losses and self._saved_collections() and self._writes():
            name = type(module).__name__
            for number, value in enumerate(inputs):
                self._offer(f"{name}_input_{number}", value)
            self._offer(f"{name}_output_0", output)
            self._flush()

    def _offer(self, name: str, value: Any) -> None:
        """Take a tensor if the present step saves one of its collections."""
        if not isinstance(value, Tensor):
            return
        collections = [each for each in self._saved_collections() if each.has(name)]
        if not collections:
            return
        configs = [each.reduction_config or self.reduction_config for each in collections]
        elements = any(config.save_raw_tensor for config in configs)
        elements = elements or any(each.name in SAVED_WHOLE for each in collections)
        keys: set[str] = set().union(*(config.keys() for config in configs))
        self._recorder.take(name, value, keys, elements=elements)

    def _flush(self, timestamp: float | None = None) -> None:
        """Write what was taken since the last call, as one line."""
        if not self._recorder.has_taken():
            return
        rank = self._rank()
        self._forget_stop()
        mode = self._steps.mode
        position = Position(mode.name, self._mode_step(), max(self.step, 0))
        workers = dist.get_world_size() if self._saves_all_workers and _has_group() else 1
        numbers = self._recorder.write(
            position, self._collections.to_json(), (rank, workers), timestamp
        )
        if self._tensorboard is not None:
            for name, number in numbers.items():
                self._tensorboard.write(name, number, position.global_step, mode)

    def _forget_stop(self) -> None:
        """Of a training before, once it is known which rank this is."""
        if self._is_new and self._rank() == 0:
            with contextlib.suppress(OSError):  # there is no such folder
                self.stop_file.unlink(missing_ok=True)
        self._is_new = False

    def _writes(self) -> bool:
        return self._saves_all_workers or self._rank() == 0

    def _rank(self) -> int:
        """Of the default group, also after its end; 0 before there is one."""
        if _has_group():
            self._known_rank = dist.get_rank()
        return self._known_rank

    def close(self) -> None:
        """End the step and the files; done at the end of the process, if not before."""
        if self._process != os.getpid():  # a forked child, whose parent goes on
            return
        atexit.unregister(self.close)
        self._end_step()
        self._recorder.close()
        if self._tensorboard is not None:
            self._tensorboard.close()

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        """Itself, so that a module with a hook can be copied; the copy is not looked at."""
        return self

    def __reduce__(self) -> Any:
        """Nothing: a module that was pickled is not looked at where it is loaded."""
        return Unhooked, ()


def _has_group() -> bool:
    return dist.is_available() and dist.is_initialized()
