# SPDX-License-Identifier: Apache-2.0
"""A line for the driver at each epoch."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

from farandole.spark.log import log_to_driver


class EpochLog:
    """Says by log_to_driver() when an epoch begins and ends, and with which metrics.

    Its methods are those of a callback of Keras; any other loop may call them. Use it on one rank.
    Threads: one.
    """

    def __init__(self, *, per_batch: bool = False) -> None:
        """Say so at the end of each batch as well if ``per_batch``."""
        self._per_batch = per_batch
        self._epoch = 0
        self._begin_s = 0.0

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Epochs count from 0."""
        del logs
        self._epoch, self._begin_s = epoch, time.monotonic()
        log_to_driver(f"epoch {epoch} begins")

    def on_batch_end(self, batch: int, logs: Mapping[str, Any] | None = None) -> None:
        """Batches count from 0; ``logs`` has metrics by their names."""
        if self._per_batch:
            log_to_driver(f"epoch {self._epoch}, batch {batch}{_text_of(logs)}")

    def on_epoch_end(self, epoch: int, logs: Mapping[str, Any] | None = None) -> None:
        """``logs`` has metrics by their names."""
        seconds = time.monotonic() - self._begin_s
        log_to_driver(f"epoch {epoch} ends after {seconds:.1f} s{_text_of(logs)}")


def _text_of(logs: Mapping[str, Any] | None) -> str:
    parts = [f"{name} {float(value):.6g}" for name, value in (logs or {}).items()]
    return f": {', '.join(parts)}" if parts else ""
