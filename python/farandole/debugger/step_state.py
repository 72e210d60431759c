# SPDX-License-Identifier: Apache-2.0
"""Whether a step can be read."""

from __future__ import annotations

from enum import Enum


class StepState(Enum):
    """UNAVAILABLE: it was not saved and will not be. NOT_YET_AVAILABLE: workers may write it."""

    UNAVAILABLE = 0
    AVAILABLE = 1
    NOT_YET_AVAILABLE = 2
