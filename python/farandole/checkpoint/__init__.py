# SPDX-License-Identifier: Apache-2.0
"""Checkpoints of all ranks, for any number of ranks."""

from farandole.checkpoint.load import load_checkpoint, resume_or_start
from farandole.checkpoint.on_signal import CheckpointOnSignal
from farandole.checkpoint.save import PendingCheckpoint, save_checkpoint

__all__ = [
    "CheckpointOnSignal",
    "PendingCheckpoint",
    "load_checkpoint",
    "resume_or_start",
    "save_checkpoint",
]
