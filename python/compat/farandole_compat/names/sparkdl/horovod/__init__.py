# SPDX-License-Identifier: Apache-2.0
"""Messages of a training for the driver."""

from __future__ import annotations

from farandole.spark import log_to_driver

__all__ = ["log_to_driver"]
