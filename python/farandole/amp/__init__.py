# SPDX-License-Identifier: Apache-2.0
"""Training in float16 and bfloat16."""

from __future__ import annotations

from farandole.amp.autocast import autocast
from farandole.amp.grad_scaler import GradScaler

__all__ = ["GradScaler", "autocast"]
