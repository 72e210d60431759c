# SPDX-License-Identifier: Apache-2.0
"""Horovod's functions for Spark, over farandole.spark: docs/spark.md says what works."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import IO, Any, NoReturn

import farandole.spark
from farandole.errors import NotSupported, sentences
from farandole.horovod.variables import spark_start_timeout_of
from farandole.logs import LOGGER
from farandole.spark import arguments
from farandole.spark.slots import active_context

_LOG_LEVELS = {0: "warning", 2: "debug"}


def run(
    fn: Callable[..., Any],
    args: Sequence[Any] = (),
    kwargs: Mapping[str, Any] | None = None,
    num_proc: int | None = None,
    start_timeout: float | None = None,
    use_mpi: bool | None = None,
    use_gloo: bool | None = None,
    extra_mpi_args: str | None = None,
    env: Mapping[str, str] | None = None,
    stdout: IO[str] | None = None,
    stderr: IO[str] | None = None,
    verbose: int = 1,
    nics: Iterable[str] | None = None,
    prefix_output_with_timestamp: bool = False,
    executable: str | None = None,
) -> list[Any]:
    """Call ``fn`` on ``num_proc`` ranks, each a task of Spark; the results, by rank.

    Raises:
        InvalidArgument, NotSupported, RankError, SystemError, TimeoutError: as
            farandole.spark.run().
    """
    if start_timeout is not None:
        arguments.check_seconds("start_timeout", start_timeout)
    arguments.check_variables("env", env)
    arguments.check_python("executable", executable)
    unused = {"use_mpi": use_mpi, "use_gloo": use_gloo, "extra_mpi_args": extra_mpi_args,
              "prefix_output_with_timestamp": prefix_output_with_timestamp}  # fmt: skip
    for name, value in unused.items():
        if value:
            LOGGER.warning("horovod.spark.run(): %s has no effect: ranks are tasks of Spark", name)
    variables = {"FARANDOLE_LOG": _LOG_LEVELS[verbose]} if verbose in _LOG_LEVELS else {}
    if nics:
        variables["FARANDOLE_NETWORK_INTERFACE"] = ",".join(nics)
    return farandole.spark.run(
        fn,
        args,
        kwargs,
        num_proc=active_context().defaultParallelism if num_proc is None else num_proc,
        start_timeout_s=(
            spark_start_timeout_of(os.environ) if start_timeout is None else start_timeout
        ),
        variables={**variables, **(env or {})},
        python=executable,
        stdout=stdout,
        stderr=stderr,
    )


def run_elastic(*args: object, **kwargs: object) -> NoReturn:
    """Refuse.

    Raises:
        NotSupported: the ranks of a barrier stage are always the same ones.
    """
    del args, kwargs
    raise NotSupported(
        sentences(
            "horovod-spark-elastic",
            "horovod.spark.run_elastic() was called.",
            "a barrier stage has a fixed number of ranks, and ends when one of them fails.",
            "call farandole.spark.run() again after a failure, with a function that begins with "
            "farandole.resume_or_start(): any number of ranks goes on with a checkpoint.",
        )
    )
