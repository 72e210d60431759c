# SPDX-License-Identifier: Apache-2.0
"""The flags of horovodrun 0.28, and which of them mean nothing here."""

from __future__ import annotations

import argparse
import difflib
import math
from typing import Any, NoReturn

from farandole.errors import InvalidArgument, sentences

LOG_LEVELS = ("TRACE", "DEBUG", "INFO", "WARNING", "ERROR", "FATAL")

WITHOUT_EFFECT = {
    "disable_cache": "nothing is cached: hosts are reached anew each time",
    "hierarchical_allreduce": "each byte crosses between two hosts once in any case",
    "hierarchical_allgather": "each byte crosses between two hosts once in any case",
    "torus_allreduce": "each byte crosses between two hosts once in any case",
    "autotune": "there is nothing to tune; `farandole bench` measures what a machine does",
    "autotune_log_file": "there is nothing to tune",
    "autotune_warmup_samples": "there is nothing to tune",
    "autotune_steps_per_sample": "there is nothing to tune",
    "autotune_bayes_opt_max_samples": "there is nothing to tune",
    "autotune_gaussian_process_noise": "there is nothing to tune",
    "mpi_threads_disable": "MPI, where it is used, is called by one thread at a time",
    "num_nccl_streams": "a group has one stream",
    "gloo_timeout_seconds": "nothing goes through gloo; FARANDOLE_TIMEOUT_S is the limit of a "
    "collective",
    "log_with_timestamp": "a log line has the form of Python's logging, which the script sets",
}
"""By the flag's name in Python: why, and what to do instead."""

ELASTIC = {
    "max_num_proc": "--max-np",
    "slots": "--slots-per-host",
    "elastic_timeout": "--elastic-timeout",
    "reset_limit": "--reset-limit",
    "cooldown_range": "--blacklist-cooldown-range",
}
"""Flags that belong to --min-np or --host-discovery-script."""

_EXAMPLES = """
Each flag is mapped to `farandole run`, which starts the ranks by torchrun on this host and by
mpirun on several. Flags that mean nothing here are named when a run starts. Environment variables
HOROVOD_* are read by hvd.init().

examples:
  horovodrun -np 4 python train.py
  horovodrun -np 4 -H h1:2,h2:2 python train.py
  horovodrun -np 4 --hostfile hosts python train.py      lines as "h1 slots=2"
  horovodrun --check-build
"""


class Flags(argparse.Namespace):
    """What was given, by the names that argparse makes; None where it was not."""

    def __getattr__(self, name: str) -> Any:
        """Of a flag that was not given."""
        if name.startswith("_"):
            raise AttributeError(name)
        return None

    def has(self, name: str) -> bool:
        """Whether it was given, and not as false."""
        return getattr(self, name) not in (None, False)


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise InvalidArgument(
            sentences(
                "horovodrun-flags",
                f"horovodrun got flags that it does not take: {message}.",
                "it knows those of Horovod 0.28, and the command stands behind them.",
                "call it as `horovodrun -np 4 python train.py`; horovodrun --help has all flags.",
            )
        )


def parse(arguments: list[str], version: str) -> Flags:
    """The flags given; nothing is filled in.

    Raises:
        InvalidArgument: a flag is unknown, or has a wrong value.
    """
    parser = make_parser(version)
    flags, unknown = parser.parse_known_args(arguments, Flags())
    if unknown:
        known = [name for action in parser._actions for name in action.option_strings]
        near = difflib.get_close_matches(unknown[0], known, n=1)
        raise InvalidArgument(
            sentences(
                "horovodrun-unknown",
                f"horovodrun got {' '.join(unknown)}.",
                "Horovod 0.28 has no such flag.",
                f"{f'did you mean {near[0]}? ' if near else ''}horovodrun --help has all flags.",
            )
        )
    return flags


def make_parser(version: str) -> argparse.ArgumentParser:
    """All flags; what is not given is not in the result."""
    parser = _Parser(
        prog="horovodrun",
        description="Starts a script for Horovod on Farandole.",
        epilog=_EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    add = parser.add_argument
    add("-v", "--version", action="version", version=version)
    add("-np", "--num-proc", type=int, metavar="N", help="how many ranks")
    add("-cb", "--check-build", action="store_true", help="what this build has")
    add("--start-timeout", type=_count, metavar="S", help="how long ranks wait for each other in "
        "hvd.init()")  # fmt: skip
    add("--network-interfaces", "--network-interface", action="append", dest="nics",
        metavar="A,B", help="through which ranks of different hosts talk")  # fmt: skip
    add("--output-filename", metavar="FOLDER", help="also write what a rank prints to "
        "FOLDER/rank.N/stdout and stderr")  # fmt: skip
    add("--verbose", action="store_true", help="print the command of `farandole run`")
    add("--config-file", metavar="YAML", help="flags that are not given here")
    add("--disable-cache", action="store_true", help=argparse.SUPPRESS)
    add("command", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    _add_hosts(parser.add_argument_group("hosts"))
    _add_tuning(parser.add_argument_group("how operations are joined, and what is watched"))
    _add_elastic(parser.add_argument_group("elastic"))
    _add_others(parser.add_argument_group("without effect here, each with a line that says so"))
    return parser


def _add_hosts(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    one = group.add_mutually_exclusive_group().add_argument
    one("-H", "--hosts", metavar="H1:N1,H2:N2", help="hosts and how many ranks each takes")
    one("-hostfile", "--hostfile", metavar="FILE", help='lines as "h1 slots=2"')
    one("--host-discovery-script", metavar="FILE", help="prints hosts, one a line; elastic")
    add("-p", "--ssh-port", type=_count, metavar="PORT", help="of ssh, on all hosts")
    add("-i", "--ssh-identity-file", metavar="FILE", help="the private key for ssh")
    one = group.add_mutually_exclusive_group().add_argument
    one("--gloo", action="store_true", dest="use_gloo", help="start ranks of this host by torchrun")
    one("--mpi", action="store_true", dest="use_mpi", help="start them by mpirun")
    one("--jsrun", action="store_true", dest="use_jsrun", help=argparse.SUPPRESS)
    add("--mpi-args", metavar="TEXT", help="more options for mpirun, as --mpi-args='-x NAME'")
    add("--binding-args", metavar="TEXT", help="how mpirun binds ranks to cores")
    add("--tcp", action="store_true", dest="tcp_flag", help="only TCP between hosts")
    one = group.add_mutually_exclusive_group().add_argument
    one("-prefix-timestamp", "--prefix-output-with-timestamp", action="store_true",
        dest="timestamps", help="begin each line with the time")  # fmt: skip
    for name in ("--log-with-timestamp", "--no-log-hide-timestamp"):
        one(name, action="store_true", dest="log_with_timestamp", help=argparse.SUPPRESS)
    for name in ("--log-without-timestamp", "--log-hide-timestamp"):
        one(name, action="store_true", dest="log_with_timestamp", help=argparse.SUPPRESS)


def _add_tuning(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--fusion-threshold-mb", type=_count, metavar="MB", help="of a call that small tensors "
        "share; 128")  # fmt: skip
    add("--cycle-time-ms", type=_amount, metavar="MS", help="for which requests are collected; 1")
    add("--cache-capacity", type=_count, metavar="N", help="names that ranks remember; 1024")
    add("--timeline-filename", metavar="FILE", help="a Chrome trace that rank 0 writes")
    one = group.add_mutually_exclusive_group().add_argument
    one("--timeline-mark-cycles", action="store_true", help="mark each round in it")
    one("--no-timeline-mark-cycles", action="store_false", dest="timeline_mark_cycles",
        help=argparse.SUPPRESS)  # fmt: skip
    one = group.add_mutually_exclusive_group().add_argument
    one("--no-stall-check", action="store_true", help="no warning of operations that wait")
    one("--stall-check", action="store_false", dest="no_stall_check", help=argparse.SUPPRESS)
    add("--stall-check-warning-time-seconds", type=_count, metavar="S", help="until a warning; 60")
    add("--stall-check-shutdown-time-seconds", type=_count, metavar="S", help="until it is an "
        "error; 0: never")  # fmt: skip
    add("--thread-affinity", type=_cores, metavar="CORES", help="of the thread that runs "
        "operations: one core, or one for each rank of a host, with commas")  # fmt: skip
    add("--log-level", choices=LOG_LEVELS, type=str.upper, help="what is logged")


def _add_elastic(group: argparse._ArgumentGroup) -> None:
    add = group.add_argument
    add("--min-np", "--min-num-proc", dest="min_num_proc", type=_count, metavar="N")
    add("--max-np", "--max-num-proc", dest="max_num_proc", type=_count, metavar="N")
    add("--slots-per-host", dest="slots", type=_count, metavar="N")
    add("--elastic-timeout", type=_count, metavar="S")
    add("--reset-limit", type=_count, metavar="N")
    add("--blacklist-cooldown-range", dest="cooldown_range", type=_count, nargs=2,
        metavar=("S", "S"))  # fmt: skip


def _add_others(group: argparse._ArgumentGroup) -> None:
    for name in ("hierarchical-allreduce", "hierarchical-allgather", "torus-allreduce", "autotune",
                 "mpi-threads-disable"):  # fmt: skip
        one = group.add_mutually_exclusive_group().add_argument
        one(f"--{name}", action="store_true")
        one(f"--no-{name}", action="store_false", dest=name.replace("-", "_"),
            help=argparse.SUPPRESS)  # fmt: skip
    add = group.add_argument
    add("--autotune-log-file", metavar="FILE")
    for name in ("warmup-samples", "steps-per-sample", "bayes-opt-max-samples"):
        add(f"--autotune-{name}", type=_count, metavar="N")
    add("--autotune-gaussian-process-noise", type=_fraction, metavar="X")
    add("--num-nccl-streams", type=_count, metavar="N")
    add("--gloo-timeout-seconds", type=_count, metavar="S")


def _count(text: str) -> int:
    if not (text.isascii() and text.isdigit()):
        raise argparse.ArgumentTypeError(f"'{text}' is no integer of at least 0")
    return int(text)


def _cores(text: str) -> str:
    for each in text.split(","):
        _count(each)
    return text


def _amount(text: str) -> float:
    return _number(text, float("inf"))


def _fraction(text: str) -> float:
    return _number(text, 1.0)


def _number(text: str, most: float) -> float:
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not (math.isfinite(value) and 0 <= value <= most):
        limits = "of at least 0" if most == float("inf") else f"from 0 to {most:g}"
        raise argparse.ArgumentTypeError(f"'{text}' is no number {limits}")
    return value
