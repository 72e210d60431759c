# SPDX-License-Identifier: Apache-2.0
"""Functions on the ranks of a Spark cluster: each task of a barrier stage is a rank."""

from __future__ import annotations

from farandole.spark.epoch_log import EpochLog
from farandole.spark.job import run
from farandole.spark.log import log_to_driver

__all__ = ["EpochLog", "log_to_driver", "run"]
