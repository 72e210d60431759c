# SPDX-License-Identifier: Apache-2.0
"""Numbers for TensorBoard."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from farandole.debugger.modes import ModeKeys
from farandole.errors import NotSupported, sentences


class TensorBoardWriter:
    """Writes numbers as scalars, those of each mode as a run of its own."""

    def __init__(self, folder: str | os.PathLike[str]) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise NotSupported(
                sentences(
                    "debugger-tensorboard",
                    "Hook was asked to export to TensorBoard.",
                    "the package tensorboard is not installed here.",
                    "pip install tensorboard, or leave export_tensorboard out.",
                )
            ) from error
        self._make: Any = SummaryWriter
        self._folder = Path(folder)
        self._writers: dict[ModeKeys, Any] = {}

    def write(self, name: str, value: float, step: int, mode: ModeKeys) -> None:
        """Add a number."""
        if mode not in self._writers:
            self._writers[mode] = self._make(self._folder / mode.name.lower())
        self._writers[mode].add_scalar(name, value, step)

    def close(self) -> None:
        """Write everything out."""
        for writer in self._writers.values():
            writer.close()
