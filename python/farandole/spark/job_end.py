# SPDX-License-Identifier: Apache-2.0
"""What it means when Spark ends a job with an error."""

from __future__ import annotations

from farandole.errors import SystemError, sentences


def says_cancelled(error: Exception | None) -> bool:
    """Whether somebody has cancelled the job."""
    return "cancelled" in _first_lines(error)


def cancelled(count: int, error: Exception | None) -> SystemError:
    """Of a job of so many ranks."""
    return SystemError(
        sentences(
            "spark-cancelled",
            f"the Spark job of {count} ranks was cancelled.",
            f"it says: {_first_lines(error)}",
            "see who cancelled it: a call of the driver, Spark's web page, or the end of the "
            "session; its ranks were ended.",
        )
    )


def not_run(count: int, error: Exception | None, python: str | None) -> SystemError:
    """Of a job of so many ranks, which have this Python if one was given."""
    others = f", and whether all of them have '{python}'" if python else ""
    return SystemError(
        sentences(
            "spark-job",
            f"Spark could not run the tasks of {count} ranks.",
            f"it says: {_first_lines(error)}",
            f"see its whole text below as the cause, and the logs of the executors{others}.",
        )
    )


def _first_lines(error: Exception | None) -> str:
    """The others are Java's."""
    return " ".join([line for line in str(error or "").splitlines() if line.strip()][:2])
