# SPDX-License-Identifier: Apache-2.0
"""Folders of torch.distributed.checkpoint that one process writes."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch.distributed.checkpoint as dcp


def save_alone(path: Path, state: dict[str, Any]) -> str:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.save(state, checkpoint_id=path, no_dist=True)
    return str(path)
