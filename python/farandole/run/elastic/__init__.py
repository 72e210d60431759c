# SPDX-License-Identifier: Apache-2.0
"""A job whose ranks may be lost and may come while it runs: `farandole run --min-ranks`.

`run_elastic` starts the ranks of `ElasticSettings` and serves the store in which they meet
(farandole.elastic_meeting). docs/elastic.md says how it behaves.
"""

from __future__ import annotations

from farandole.run.elastic.settings import ElasticSettings
from farandole.run.job import Job

__all__ = ["ElasticSettings", "run_elastic"]


def run_elastic(settings: ElasticSettings) -> int:
    """Runs the job; returns the exit status of the command, 0 if it has done its work.

    Raises:
        SystemError: the host discovery script failed when it was called first.
    """
    from farandole.run.monitor import run

    return run(job_of(settings))


def job_of(settings: ElasticSettings) -> Job:
    """What `farandole run` makes of it."""
    return Job(
        command=settings.command,
        ranks=settings.max_ranks,
        ranks_by_default=False,
        placed={},
        nodes=None,
        max_restarts=0,
        mpirun_arguments=[],
        bind=False,
        prefix=settings.prefix,
        output_folder=settings.output_folder,
        quiet=settings.quiet,
        variables=dict(settings.variables),
        elastic=settings,
    )
