# SPDX-License-Identifier: Apache-2.0
"""A job of SageMaker in options of `farandole run`."""

from __future__ import annotations

import argparse
import shlex
from pathlib import Path

from farandole.errors import InvalidArgument, sentences
from farandole.run.sagemaker.job import SageMakerJob


def apply_job(options: argparse.Namespace, job: SageMakerJob) -> None:
    """Put a job into the options of `farandole run`; those that the user has given count."""
    has_hosts = options.hosts is not None or options.hostfile is not None
    if options.ranks is None and job.ranks_per_host is not None and not has_hosts:
        options.ranks = str(job.ranks_per_host)
    _apply_program(options, job)
    if not job.hosts or has_hosts or options.nnodes is not None:
        _refuse_mpi_options(job, has_hosts)
    elif job.current_host is not None:
        _refuse_mpi_options(job, False)
        options.nnodes = str(len(job.hosts))
        options.node_rank = str(job.hosts.index(job.current_host))
        options.master_addr = options.master_addr or job.hosts[0]
    else:
        each = "" if options.ranks is None else f":{options.ranks}"
        options.hosts = ",".join(f"{host}{each}" for host in job.hosts)
        options.ranks = None
    if job.mpi_options:
        options.mpirun_args = f"{options.mpirun_args} {shlex.join(job.mpi_options)}".strip()


def _apply_program(options: argparse.Namespace, job: SageMakerJob) -> None:
    words = options.program[options.program[:1] == ["--"] :] or [job.program]
    if words[0] is None:
        raise InvalidArgument(
            sentences(
                "sagemaker-program",
                "farandole run got no program.",
                "neither the command line names one, nor the file of --from-sagemaker.",
                "write entry_point into the file, or put the script behind the options.",
            )
        )
    program = words[0]
    is_path = "/" in program or program.endswith(".py")
    if job.folder is not None and is_path and not options.module:
        program = str(Path(program).absolute())  # ranks run in another folder
    options.program = [program, *words[1:], *job.arguments]


def _refuse_mpi_options(job: SageMakerJob, uses_mpirun: bool) -> None:
    if job.mpi_options and not uses_mpirun:
        raise InvalidArgument(
            sentences(
                "sagemaker-mpi-options",
                f"custom_mpi_options has {shlex.join(job.mpi_options)}.",
                "torchrun starts these ranks; of mpirun's options it has -x NAME=VALUE alone.",
                "leave them out; or leave SM_CURRENT_HOST out, and mpirun starts all hosts.",
            )
        )
