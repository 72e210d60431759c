# SPDX-License-Identifier: Apache-2.0
"""farandole.load_checkpoint()."""

from __future__ import annotations

import contextlib
import copy
import json
import logging
import os
import time
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch.autograd.profiler import record_function

from farandole import _C
from farandole.called import collective
from farandole.checkpoint import tree
from farandole.checkpoint.checks import check_tensor
from farandole.checkpoint.names import (
    Models,
    Optimizers,
    models_of,
    optimizers_of,
    own_tensors,
    parameter_names,
    plain,
)
from farandole.checkpoint.no_checkpoint import tell_of_start
from farandole.checkpoint.optimizer_state import OptimizerLoader
from farandole.checkpoint.reader import Reader
from farandole.checkpoint.rng import RngStates
from farandole.checkpoint.writers import writer_of
from farandole.errors import CheckpointError, Error, sentences

if TYPE_CHECKING:
    from farandole.checkpoint.dcp_folder import DcpFolder

    Checkpoint = _C.CheckpointReader | DcpFolder

_logger = logging.getLogger(__name__)
_VISIBLE_WITHIN_S = 10.0
"""How long a folder that rank 0 sees may take to be seen by others, as on NFS."""


@collective
def load_checkpoint(
    path: str | os.PathLike[str],
    *,
    model: Models = None,
    optimizer: Optimizers = None,
    scheduler: Any = None,
    scaler: Any = None,
    sampler: Any = None,
    rng: bool = True,
    process_group: dist.ProcessGroup | None = None,
) -> dict[str, Any]:
    """Load what save_checkpoint() has saved, by any number of ranks. Collective.

    Everything is compared with its checksums first, and nothing is changed before all ranks have
    done so: if one fails, all raise, and the training is as before. Then it is read into place;
    only a file that is lost or changed meanwhile can leave a part of it, which the error says.

    Args:
        path: The folder given to save_checkpoint(), of which the latest is loaded, or that of one
            checkpoint; also one that torch.distributed.checkpoint has written.
        model: Into which parameters and buffers go; the same keys, shapes and dtypes.
        optimizer: Of the class that was saved, sharded or not. Groups may have another order.
        scheduler: Anything with load_state_dict(), as the next two.
        scaler: A GradScaler.
        sampler: A sampler. What is not given is not loaded.
        rng: Whether the states of random number generators are set, if as many ranks load as saved.
        process_group: The ranks; those of the default group if None.

    Returns:
        The program's own values.

    Raises:
        CheckpointError: on all ranks: nothing is there, it is damaged, or belongs to another model.
    """
    with record_function("farandole:load_checkpoint"):
        loading = _begun("load_checkpoint", path, process_group)
        return loading(model, optimizer, scheduler, scaler, sampler, rng)


@collective
def resume_or_start(
    path: str | os.PathLike[str],
    *,
    model: Models = None,
    optimizer: Optimizers = None,
    scheduler: Any = None,
    scaler: Any = None,
    sampler: Any = None,
    rng: bool = True,
    process_group: dist.ProcessGroup | None = None,
) -> dict[str, Any] | None:
    """Load the latest checkpoint if there is one: for scripts that are started again. Collective.

    Args:
        path: As of load_checkpoint(), as all others; the folder need not be there.
        model: Likewise.
        optimizer: Likewise.
        scheduler: Likewise.
        scaler: Likewise.
        sampler: Likewise.
        rng: Likewise.
        process_group: Likewise.

    Returns:
        The program's own values, or None if there is no checkpoint, on any rank.

    Raises:
        CheckpointError: there is one, and it cannot be loaded.
    """
    with record_function("farandole:load_checkpoint"):
        loading = _begun("resume_or_start", path, process_group)
        if loading.is_there():
            return loading(model, optimizer, scheduler, scaler, sampler, rng)
    return None


class _Load:
    """A load of all ranks."""

    def __init__(self, call: str, path: str, agreeing: _C.CheckpointWriter) -> None:
        self._call = f"{call}()"
        self._path = path
        self._agreeing = agreeing

    def is_there(self) -> bool:
        """Whether rank 0 finds a checkpoint. Collective."""
        found, error = "", ""
        if self._agreeing.rank == 0:
            try:
                found = _checkpoint_at(self._path).folder
            except CheckpointError as met:
                error = "" if _is_missing(met) else str(met)
                if not error:
                    tell_of_start(self._path)
        self._agreeing.agree(self._call, error)
        return bool(self._agreeing.all_gather(found)[0])

    def __call__(
        self,
        model: Models,
        optimizer: Optimizers,
        scheduler: Any,
        scaler: Any,
        sampler: Any,
        rng: bool,
    ) -> dict[str, Any]:
        """Read all, agree, change. Collective."""
        agreeing = self._agreeing
        found = _opened(self._call, self._path, agreeing)
        given = {"sampler": sampler, "scheduler": scheduler, "scaler": scaler}
        holders = {name: each for name, each in given.items() if each is not None}
        with self._together():
            reader = _reader_of(found, model, optimizer, holders)
            loading = _Loading(reader, agreeing.rank, agreeing.world_size)
            loading.take_models(model)
            loading.take_optimizers(optimizer, model)
            states = {name: loading.state(name) for name in holders}
            values = loading.values()
            if rng:
                generators = RngStates(reader, agreeing.rank, agreeing.world_size)
        # What may refuse a state comes first, and is put back if any does, on any rank. Samplers
        # say whether they would: one in the middle of a pass cannot be put back.
        later = {
            name: holders[name] for name in states if hasattr(holders[name], "check_state_dict")
        }
        at_once = {name: holders[name] for name in states if name not in later}
        undo = [_undoing(holder) for holder in at_once.values()]
        try:
            with self._together():
                for name, holder in at_once.items():
                    holder.load_state_dict(states[name])
                for name, holder in later.items():
                    holder.check_state_dict(states[name])
        except Exception:
            for each in undo:
                with contextlib.suppress(Exception):  # one that refuses its own state, too
                    each()
            raise
        for name, holder in later.items():
            holder.load_state_dict(states[name])
        self._change(loading.changes)
        if rng:
            generators.change()
        if agreeing.rank == 0:
            _logger.info("%s loaded '%s'.", self._call, found.folder)
        return values

    def _change(self, changes: list[Callable[[], object]]) -> None:
        """Do it on all ranks. Collective.

        All has been compared: only what has become of the files since can fail. What comes after a
        change that failed is done all the same, for it may be collective.
        """
        failure: Exception | None = None
        with self._together():
            for change in changes:
                try:
                    with torch.no_grad():
                        change()
                except Exception as met:
                    failure = failure or met
            if failure is not None:
                raise CheckpointError(
                    sentences(
                        "checkpoint-torn",
                        f"the checkpoint at '{self._path}' was taken only in part on rank "
                        f"{self._agreeing.rank}.",
                        f"all ranks had compared it with its checksums; then: {failure}",
                        "load another checkpoint before training goes on; let nothing change or "
                        "delete the one that is loaded.",
                    )
                ) from failure

    @contextlib.contextmanager
    def _together(self) -> Iterator[None]:
        """All ranks do it, or all raise. Collective at the end."""
        try:
            yield
        except Exception as met:
            error = met
            if not isinstance(met, Error):
                error = CheckpointError(
                    sentences(
                        "checkpoint-unknown",
                        f"the checkpoint at '{self._path}' could not be taken.",
                        f"{type(met).__qualname__}: {met}.",
                        "load what save_checkpoint() has saved, into what was given to it.",
                    )
                )
            with contextlib.suppress(CheckpointError):
                self._agreeing.agree(self._call, str(error))
            raise error from met
        self._agreeing.agree(self._call, "")


def _undoing(holder: Any) -> Callable[[], None]:
    """What puts it back to how it is now."""
    try:
        state = copy.deepcopy(holder.state_dict())
    except TypeError:  # a sampler, which asks how far the program is
        attributes = copy.copy(vars(holder))
        return partial(vars(holder).update, attributes)
    return partial(holder.load_state_dict, state)


def _begun(
    call: str, path: str | os.PathLike[str], process_group: dist.ProcessGroup | None
) -> _Load:
    """After what this program saves there. Collective."""
    agreeing = writer_of(call, os.fspath(path), process_group)
    error = ""
    try:
        agreeing.wait()
    except Error as met:
        error = str(met)
    agreeing.agree(f"{call}()", error)
    return _Load(call, os.path.realpath(path), agreeing)


def _checkpoint_at(path: str) -> Checkpoint:
    """One that save_checkpoint() has written, else one of torch.distributed.checkpoint. Local."""
    try:
        return _C.CheckpointReader(path)
    except CheckpointError as met:
        if not _is_missing(met) or not Path(path, ".metadata").exists():
            raise
    from farandole.checkpoint.dcp_folder import DcpFolder

    return DcpFolder(path)


def _is_missing(error: CheckpointError) -> bool:
    return "[checkpoint-missing]" in str(error)


def _reader_of(
    found: Checkpoint, models: Models, optimizers: Optimizers, holders: Mapping[str, Any]
) -> Reader:
    """What reads it in our names. Local."""
    if isinstance(found, _C.CheckpointReader):
        return found
    from farandole.checkpoint.dcp_reader import DcpReader

    return DcpReader(found, models_of(models), optimizers_of(optimizers), holders)


def _opened(call: str, path: str, agreeing: _C.CheckpointWriter) -> Checkpoint:
    """The checkpoint that rank 0 finds, on all ranks. Collective.

    Another job that saves there may remove it (keep=) before all have opened it: then a newer one.
    """
    while True:
        reader: Checkpoint | None = None
        error: Exception | None = None
        if agreeing.rank == 0:
            try:
                reader = _checkpoint_at(path)
            except Error as met:
                error = met
        folder = agreeing.all_gather(reader.folder if reader is not None else "")[0]
        if agreeing.rank != 0 and folder:
            try:
                reader = _once_visible(folder)
            except Error as met:
                error = met
        failed = any(agreeing.all_gather("" if error is None else "failed"))
        was_removed = folder != path and not _may_exist(Path(folder))  # when all have tried
        if not failed or not agreeing.all_gather("removed" if was_removed else "")[0]:
            break
    try:
        agreeing.agree(call, "" if error is None else str(error))
    except CheckpointError:
        if error is not None:
            raise error from None
        raise
    assert reader is not None
    return reader


def _once_visible(folder: str) -> Checkpoint:
    deadline = time.monotonic() + _VISIBLE_WITHIN_S
    last = [Path(folder, name) for name in ("index.json", ".metadata")]  # of which it has one
    while not any(_may_exist(each) for each in last) and time.monotonic() < deadline:
        time.sleep(0.1)
    return _checkpoint_at(folder)


def _may_exist(path: Path) -> bool:
    """Whoever opens it learns why that cannot be told."""
    try:
        return path.exists()
    except OSError:  # no permission
        return True


class _Loading:
    """What is read, and how it is taken over."""

    def __init__(self, reader: Reader, rank: int, world_size: int) -> None:
        self._reader = reader
        self._rank = rank
        self._world_size = world_size
        self._entries = reader.entries
        self._json = json.loads(reader.values)
        self.changes: list[Callable[[], object]] = []

    def take_models(self, models: Models) -> None:
        """Read all tensors of the models."""
        for prefix, model in models_of(models).items():
            own = own_tensors(model)
            state = model.state_dict(keep_vars=True)
            present = {plain(name) for name in state}
            for name in self._json["models"].get(prefix, []):
                if name not in present:
                    raise _mismatch(
                        f"'{prefix}{name}' of a model",
                        "the model to load into has nothing of that name",
                        "load it into the model that was saved.",
                    )
            seen: dict[int, str] = {}
            others: dict[str, Any] = {}
            for wrapped, value in state.items():
                name = plain(wrapped)
                if name not in own or own[name] is not value:
                    others[wrapped] = self.state(f"model/{prefix}{name}")
                elif id(value) in seen:
                    self._check_tied(seen[id(value)], self._saved_key(prefix + name))
                else:
                    seen[id(value)] = self._saved_key(prefix + name)
                    self._take_tensor(prefix + name, value)
            if others:  # the module's own methods know what to do with them
                self.changes.append(partial(model.load_state_dict, others, strict=False))

    def _saved_key(self, key: str) -> str:
        """Of a tied tensor, which is saved once."""
        saved: str = self._json["aliases"].get(key, key)
        return saved

    def _check_tied(self, first: str, other: str) -> None:
        """What is one tensor in the model may be two of the same value."""
        if first == other or other not in self._entries:
            return
        wholes = [self._reader.read_whole(key).contiguous() for key in (first, other)]
        a, b = (whole.view(-1).view(torch.uint8) for whole in wholes)  # a NaN equals itself
        if wholes[0].shape != wholes[1].shape or not torch.equal(a, b):
            raise _mismatch(
                f"other values in '{first}' than in '{other}'",
                "both are one tensor in the model, which cannot have two values",
                "load it into a model where they are two tensors.",
            )

    def _take_tensor(self, key: str, tensor: torch.Tensor) -> None:
        check_tensor(key, tensor)
        _C.check_apart(key, tensor)
        key = self._saved_key(key)
        entry = self._entries.get(key)
        if entry is None:
            raise _mismatch(
                f"no tensor '{key}'", "the model has one", "load it into the model that was saved."
            )
        is_count = tensor.dim() == 0 and not isinstance(tensor, torch.nn.Parameter)
        for what, saved, own in (
            ("shape", tuple(entry.shape), tuple(tensor.shape)),
            ("dtype", entry.dtype, tensor.dtype),
        ):
            # LibTorch's to(dtype) makes num_batches_tracked a floating-point number.
            if saved != own and not (what == "dtype" and is_count and self._is_exact(key, tensor)):
                raise _mismatch(
                    f"'{key}' with the {what} {saved}",
                    f"the model's has the {what} {own}",
                    "load it into the model that was saved, and convert that afterwards.",
                )
        self._reader.check_share(key, self._rank, self._world_size)
        self.changes.append(partial(self._reader.read_whole_into, key, tensor.detach()))

    def _is_exact(self, key: str, tensor: torch.Tensor) -> bool:
        value = self._reader.read_whole(key)
        return torch.equal(value.to(tensor.dtype).to(value.dtype), value)

    def take_optimizers(self, optimizers: Optimizers, models: Models) -> None:
        """Read what this rank needs of their states."""
        known = parameter_names(models_of(models))
        for prefix, optimizer in optimizers_of(optimizers).items():
            saved = self._json["optimizers"].get(prefix)
            if saved is None:
                there = ", ".join(repr(each.rstrip(":")) for each in self._json["optimizers"])
                raise _mismatch(
                    f"no optimizer {prefix.rstrip(':')!r}",
                    f"it has {there or 'none'}",
                    "pass optimizers by the names under which they were saved.",
                )
            loader = OptimizerLoader(prefix, optimizer, known, self._reader, self._entries, saved)
            loader.prepare()
            self.changes.append(loader.change)

    def state(self, name: str) -> Any:
        """What goes to load_state_dict()."""
        if name not in self._json["states"]:
            raise _mismatch(
                f"no state of a {name}",
                "it was not given to save_checkpoint()",
                f"leave {name}= out, and begin with a new one.",
            )
        return tree.decode(self._json["states"][name], self._reader.read_whole)

    def values(self) -> dict[str, Any]:
        """Those of the program."""
        values: dict[str, Any] = tree.decode(self._json["values"], self._reader.read_whole)
        return values


def _mismatch(has: str, why: str, fix: str) -> CheckpointError:
    return CheckpointError(
        sentences("checkpoint-other-model", f"the checkpoint has {has}.", f"{why}.", fix)
    )
