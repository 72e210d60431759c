# SPDX-License-Identifier: Apache-2.0
"""Horovod's import name, over Farandole: docs/horovod.md says what works.

`horovod.torch` and `horovod.spark` are there. TensorFlow, Keras and MXNet are none of Farandole's
frameworks.
"""

from __future__ import annotations

import importlib.abc
import sys
from typing import Any

from farandole.errors import NotSupported, sentences
from farandole.horovod.function import run

__all__ = ["run"]
__version__ = "0.28.1"
"""That of the interface, which scripts compare with."""

_NATIVE = {
    "horovod.tensorflow": "train with torch: Farandole has no TensorFlow.",
    "horovod.keras": "train with torch: Farandole has no Keras.",
    "horovod.mxnet": "train with torch: Farandole has no MXNet.",
    **dict.fromkeys(
        (f"horovod.spark.{part}" for part in ("common", "keras", "lightning", "torch")),
        "write the DataFrame to files, and train in a function that reads them by rank: "
        "horovod.spark.run(), as examples/spark/train.py does.",
    ),
    "horovod.spark.task": "call torch.cuda.set_device(hvd.local_rank()): that is the GPU which "
    "Spark has given to the task.",
    "horovod.ray": "start the ranks with torchrun or `farandole run` on the hosts.",
    "horovod.runner": "start ranks with horovodrun, horovod.run() or `farandole run`.",
}


class MissingModule(NotSupported, ImportError):
    """A part of Horovod's that is not there; scripts may take it for an ImportError."""


class _MissingModules(importlib.abc.MetaPathFinder):
    """Says what to do instead of a ModuleNotFoundError."""

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> None:
        del path, target
        for module, native in _NATIVE.items():
            if name == module or name.startswith(f"{module}."):
                raise _missing(module, native)


def _missing(what: str, native: str) -> NotSupported:
    return MissingModule(
        sentences(
            "horovod-missing",
            f"{what} was asked for.",
            "Farandole has this name of Horovod's, but not this part.",
            native,
        )
    )


sys.meta_path.append(_MissingModules())
