# SPDX-License-Identifier: Apache-2.0
"""Databricks' import name, over Farandole: HorovodRunner. docs/spark.md says what works."""

from __future__ import annotations

from sparkdl.horovod.runner import HorovodRunner

__all__ = ["HorovodRunner"]
