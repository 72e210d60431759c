# SPDX-License-Identifier: Apache-2.0
"""HorovodRunner: a function on ranks of the driver's host, or of a Spark cluster."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Mapping
from typing import Any

import farandole.spark
from farandole.errors import InvalidArgument, sentences
from farandole.run.function import run_function
from farandole.spark.arguments import check_function

_VERBOSITIES = ("all", "log_callback_only")


class HorovodRunner:
    """Runs a training function on all ranks together. Threads: any."""

    def __init__(self, *, np: int, driver_log_verbosity: str = "log_callback_only") -> None:
        """Say how many ranks, and whether all that they print comes to the driver.

        Args:
            np: Below 0: -np processes on the driver's host. Above 0: so many tasks of Spark.
                0, which is deprecated: one for each slot of the cluster.
            driver_log_verbosity: "all", or "log_callback_only": what log_to_driver() and
                LogCallback say. It counts for tasks of Spark: what ranks on the driver's host print
                is always shown.

        Raises:
            InvalidArgument: a value is none of these.
        """
        if type(np) is not int or driver_log_verbosity not in _VERBOSITIES:
            raise InvalidArgument(
                sentences(
                    "horovod-runner",
                    f"HorovodRunner() got np={np!r} and driver_log_verbosity="
                    f"{driver_log_verbosity!r}.",
                    "np is a number of ranks, and the verbosity 'all' or 'log_callback_only'.",
                    "pass np=-2 for 2 processes here, or np=2 for 2 tasks of Spark.",
                )
            )
        if np == 0:
            warnings.warn(
                "HorovodRunner(np=0) is deprecated: pass the number of ranks.",
                DeprecationWarning,
                stacklevel=2,
            )
        self.num_processor = np
        self._shows_output = driver_log_verbosity == "all"

    def run(self, main: Callable[..., Any], **kwargs: Any) -> Any:
        """Call ``main(**kwargs)`` on all ranks; what rank 0 returned.

        Raises:
            InvalidArgument, NotSupported, RankError, SystemError, TimeoutError: as
                farandole.spark.run().
        """
        check_function(main)
        if self.num_processor < 0:
            return run_function(_on_rank, (main, kwargs), ranks=-self.num_processor)[0]
        return farandole.spark.run(
            _on_rank,
            (main, kwargs),
            num_proc=self.num_processor or None,
            shows_output=self._shows_output,
        )[0]


def _on_rank(main: Callable[..., Any], kwargs: Mapping[str, Any]) -> Any:
    """The result of rank 0 alone travels."""
    result = main(**kwargs)
    return result if os.environ["RANK"] == "0" else None
