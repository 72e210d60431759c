# SPDX-License-Identifier: Apache-2.0
"""LogCallback: a callback of Keras where it is installed, which runs on torch as well."""

from __future__ import annotations

from farandole.spark import EpochLog

try:
    from keras.callbacks import Callback
except ImportError:  # any loop may call its methods
    Callback = object

__all__ = ["LogCallback"]


class LogCallback(EpochLog, Callback):  # type: ignore[misc]  # Keras has no types
    """Sends the driver a line for each epoch; with per_batch_log also for each batch."""

    def __init__(self, per_batch_log: bool = False) -> None:
        Callback.__init__(self)
        EpochLog.__init__(self, per_batch=per_batch_log)
