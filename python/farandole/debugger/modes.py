# SPDX-License-Identifier: Apache-2.0
"""What a step is for."""

from __future__ import annotations

from enum import Enum


class ModeKeys(Enum):
    """The mode of a step. Each mode counts its own steps; GLOBAL counts the steps of all modes."""

    TRAIN = 1
    EVAL = 2
    PREDICT = 3
    GLOBAL = 4
