# SPDX-License-Identifier: Apache-2.0
"""How many tasks a Spark cluster runs at the same time."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

from farandole.errors import InvalidArgument, NotSupported, sentences
from farandole.logs import LOGGER

if TYPE_CHECKING:
    from pyspark import SparkContext

_PAUSE_S = 0.2


def active_context() -> SparkContext:
    """That of the driver's session.

    Raises:
        InvalidArgument: there is none.
        NotSupported: pyspark is missing, or the session is one of Spark Connect.
    """
    try:
        from pyspark.sql.utils import is_remote
    except ImportError as error:
        raise NotSupported(
            sentences(
                "spark-missing",
                "farandole.spark.run() was called, and pyspark is not installed.",
                "it runs functions in tasks of a Spark cluster.",
                "pip install pyspark; ranks on this host need no Spark: call "
                "farandole.run.function.run_function().",
            )
        ) from error
    if is_remote():
        raise NotSupported(
            sentences(
                "spark-connect",
                "farandole.spark.run() was called in a session of Spark Connect.",
                "it has no barrier stages of functions.",
                "call it on the driver, or run pyspark's TorchDistributor with Farandole in it.",
            )
        )
    from pyspark import SparkContext

    context: SparkContext | None = SparkContext._active_spark_context
    if context is None:
        raise InvalidArgument(
            sentences(
                "spark-no-session",
                "farandole.spark.run() found no Spark session.",
                "its ranks are tasks of one, and none is active in this program.",
                "call SparkSession.builder.getOrCreate() first; for ranks on this host alone use "
                "farandole.run.function.run_function(), or HorovodRunner(np=-2).",
            )
        )
    return context


def slots_of(context: SparkContext) -> int:
    """Tasks that the executors of now can run at the same time."""
    spark: Any = context._jsc.sc()
    profile = spark.resourceProfileManager().defaultResourceProfile()
    return int(spark.maxNumConcurrentTasks(profile))


def wait_for_slots(context: SparkContext, tasks: int, deadline_s: float) -> None:
    """Until there are as many as ``tasks``; executors may be on their way.

    Args:
        context: Of the driver.
        tasks: How many are to run at the same time.
        deadline_s: Of time.monotonic().

    Raises:
        InvalidArgument: there are fewer, for good or until ``deadline_s``.
    """
    is_told = False
    while (slots := slots_of(context)) < tasks:
        if _is_one_process(context) or time.monotonic() > deadline_s:
            raise InvalidArgument(
                sentences(
                    "spark-slots",
                    f"farandole.spark.run() was asked for {tasks} ranks.",
                    f"each is a task, all run at the same time, and the cluster has slots for "
                    f"{slots} (cores of its executors, divided by spark.task.cpus).",
                    f"pass num_proc={max(slots, 1)}, start more executors, or wait longer for them "
                    "with a larger start_timeout_s.",
                )
            )
        if not is_told:
            LOGGER.info("spark: waiting for %d task slots, %d are there", tasks, slots)
            is_told = True
        time.sleep(_PAUSE_S)


def _is_one_process(context: SparkContext) -> bool:
    """Whether the driver runs tasks itself: then there will be no more slots."""
    master = str(context.master)
    return master == "local" or master.startswith("local[")
