# SPDX-License-Identifier: Apache-2.0
"""The command horovodrun: Horovod's flags, mapped to `farandole run`."""

from __future__ import annotations

import dataclasses
import shlex
import sys
from pathlib import Path

from farandole.errors import Error, InvalidArgument, sentences
from farandole.horovod import flags as flags_of_horovod
from farandole.horovod.build import check_build
from farandole.horovod.config_file import fill_in
from farandole.horovod.flags import Flags
from farandole.horovod.plan import plan_of
from farandole.run.command_line import MISUSE, end_with, job_of, make_parser
from farandole.run.job import Job


def main(arguments: list[str], version: str) -> int:
    """Runs the command and ends the process with its exit status; returns that of misuse.

    Args:
        arguments: Without the name of the program.
        version: Of Horovod's interface.
    """
    try:
        flags = parse(arguments, version)
        if flags.check_build:
            print(check_build(version))
            return 0
        status = _run(flags)
    except Error as error:
        print(error, file=sys.stderr)
        return MISUSE
    return end_with(status)


def parse(arguments: list[str], version: str) -> Flags:
    """The flags given, and those of the configuration file.

    Raises:
        InvalidArgument: a flag or key is unknown, or has a wrong value.
    """
    flags = flags_of_horovod.parse(arguments, version)
    if flags.config_file:
        fill_in(flags, Path(flags.config_file), version)
    return flags


def _run(flags: Flags) -> int:
    from farandole.run.monitor import run

    return run(job_of_flags(flags))


def program_of(flags: Flags) -> list[str]:
    """What each rank runs.

    Raises:
        InvalidArgument: there is none.
    """
    program = list(flags.command or [])
    program = program[program[:1] == ["--"] :]
    if not program:
        raise InvalidArgument(
            sentences(
                "horovodrun-no-command",
                "horovodrun got no command.",
                "it is what each rank runs.",
                "put it behind the flags, as in `horovodrun -np 4 python train.py`.",
            )
        )
    return program


def job_of_flags(flags: Flags) -> Job:
    """What `farandole run` is asked for.

    Raises:
        InvalidArgument: flags are missing, or do not go together.
        NotSupported: jsrun is to start the ranks.
    """
    plan = plan_of(flags)
    program = program_of(flags)
    options = make_parser().parse_args([*plan.command()[2:], *program])
    notes = [f"without effect here: {note}" for note in plan.notes]
    if flags.verbose:
        words = [f"{name}={value}" for name, value in plan.variables.items()]
        notes.append(f"this is {shlex.join([*words, *plan.command(), *program])}")
    job = job_of(options)
    elastic = job.elastic and dataclasses.replace(
        job.elastic,
        variables=plan.variables,
        ssh_port=flags.ssh_port,
        ssh_identity_file=flags.ssh_identity_file,
    )
    return dataclasses.replace(job, variables=plan.variables, notes=notes, elastic=elastic)
