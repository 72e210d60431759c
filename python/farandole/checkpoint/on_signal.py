# SPDX-License-Identifier: Apache-2.0
"""Saving when a scheduler takes the machine away."""

from __future__ import annotations

import logging
import os
import signal
from collections.abc import Iterable
from pathlib import Path
from types import FrameType
from typing import Any

import torch
import torch.distributed as dist

from farandole import _C, arguments
from farandole.checkpoint.save import last_checkpoint
from farandole.errors import CheckpointError, InvalidArgument, sentences

_logger = logging.getLogger(__name__)
_REQUEUE_STATUS = 75
"""EX_TEMPFAIL of sysexits.h: try again later."""


class CheckpointOnSignal:
    """Tell all ranks after the same step that one of them is to be ended.

    Schedulers send a signal some time before they take a machine (SLURM: ``--signal=USR1@120``;
    Kubernetes and spot instances: SIGTERM), often to one rank alone. A rank notes it, and the next
    ``requested()``, which all ranks call after the same step, says so on all of them::

        preemption = farandole.CheckpointOnSignal()
        for step in range(first, last):
            train(step)
            if preemption.requested():
                farandole.save_checkpoint(path, **training, values={"step": step + 1})
                preemption.exit()

    Handlers that the program had set before are called too, but for those that end the process.
    Threads: the main thread makes it, as Python demands of who sets handlers.
    """

    def __init__(
        self,
        signals: Iterable[int] = (signal.SIGTERM, signal.SIGUSR1),
        *,
        file: str | os.PathLike[str] | None = None,
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        """Take over signals. Local.

        Args:
            signals: Those that ask for it.
            file: One that asks for it by being there, on any rank.
            process_group: The ranks; those of the default group if None.

        Raises:
            InvalidArgument: a signal cannot be handled, or this is not the main thread.
        """
        self._group = arguments.group_of("CheckpointOnSignal", process_group)
        self._file = Path(file) if file is not None else None
        self._is_asked = False
        self._was_told = False
        self._is_closed = False
        self._before: dict[int, Any] = {}
        for number in signals:
            try:
                self._before[number] = signal.signal(number, self._note)
            except (OSError, ValueError) as error:
                self.close()
                raise InvalidArgument(
                    sentences(
                        "checkpoint-signal",
                        f"CheckpointOnSignal got the signal {int(number)}.",
                        f"it cannot be handled: {error}.",
                        "pass signals that programs may handle, such as SIGTERM and SIGUSR1.",
                    )
                ) from error

    def _note(self, number: int, frame: FrameType | None) -> None:
        self._is_asked = True
        before = self._before.get(number)
        if callable(before) and (self._is_closed or before is not signal.default_int_handler):
            before(number, frame)
        elif self._is_closed and before == signal.SIG_DFL:  # below a handler that was set later
            signal.signal(number, signal.SIG_DFL)
            os.kill(os.getpid(), number)

    def requested(self) -> bool:
        """Whether any rank was asked, the same on all. Collective: one number to all ranks."""
        own = self._is_asked or (self._file is not None and self._file.exists())
        asked = torch.tensor([float(own)], device=self._device())
        with _C.CalledFunction("requested()"):
            dist.all_reduce(asked, dist.ReduceOp.MAX, group=self._group)
        if not asked.item():
            return False
        if not self._was_told and self._group.rank() == 0:
            _logger.info("a rank was asked to save and end: requested() is True on all ranks.")
        self._was_told = True
        return True

    def _device(self) -> torch.device:
        """The CPU, unless the group serves other devices alone."""
        served = self._group._device_types
        cpu = torch.device("cpu")
        return cpu if cpu in served or not served else served[0]

    def exit(self, status: int = _REQUEUE_STATUS) -> None:
        """End this process, with a status that schedulers take as "try again".

        Args:
            status: 75 by default (EX_TEMPFAIL).

        Raises:
            SystemExit: always.
        """
        if self._group.rank() == 0:
            try:
                folder = last_checkpoint()
            except CheckpointError as error:
                _logger.error("%s", error)
            else:
                saved = f"the last checkpoint is '{folder}'" if folder else "nothing was saved"
                _logger.info("CheckpointOnSignal ends the ranks with status %d; %s.", status, saved)
        raise SystemExit(status)

    def close(self) -> None:
        """Give the signals back. Below a handler that was set later, only pass them on."""
        self._is_closed = True
        for number, before in self._before.items():
            if signal.getsignal(number) == self._note:
                signal.signal(number, before)
