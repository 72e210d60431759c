# SPDX-License-Identifier: Apache-2.0
"""What flags of horovodrun, or arguments of horovod.run(), become: a call of `farandole run`."""

from __future__ import annotations

import os
import re
import shlex
from dataclasses import dataclass, field
from pathlib import Path

from farandole.errors import InvalidArgument, NotSupported, sentences
from farandole.horovod.flags import ELASTIC, WITHOUT_EFFECT, Flags
from farandole.run import hosts
from farandole.run.mpirun import maps_itself
from farandole.run.passed_variables import passes_by_itself
from farandole.run.rank import RANKS_OF_HOSTS

_MIB = 1 << 20
_PLAIN = {
    "cycle_time_ms": "HOROVOD_CYCLE_TIME",
    "cache_capacity": "HOROVOD_CACHE_CAPACITY",
    "timeline_filename": "HOROVOD_TIMELINE",
    "stall_check_warning_time_seconds": "HOROVOD_STALL_CHECK_TIME_SECONDS",
    "stall_check_shutdown_time_seconds": "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
    "thread_affinity": "HOROVOD_THREAD_AFFINITY",
    "start_timeout": "HOROVOD_START_TIMEOUT",
    "log_level": "HOROVOD_LOG_LEVEL",
}
"""Flags whose values are those of variables, which hvd.init() reads."""
_NOT_EXPORTED = re.compile(
    r"(RANK|WORLD_SIZE|LOCAL_RANK|LOCAL_WORLD_SIZE|OLDPWD|PWD|HOSTNAME|_|FARANDOLE_HOST_ID)$"
    r"|OMPI_|PMIX_|PRTE_|PMI_|SLURM_|SSH_"
)
"""Variables that belong to one host or one launcher."""


@dataclass
class Plan:
    """A call of `farandole run`, without its program."""

    ranks: int
    options: list[str] = field(default_factory=list)
    """Beside `-n`."""
    variables: dict[str, str] = field(default_factory=dict)
    """For the ranks."""
    notes: list[str] = field(default_factory=list)
    """Flags that mean nothing here, each with the reason."""

    def command(self) -> list[str]:
        """The command line, up to the program."""
        return ["farandole", "run", "-n", str(self.ranks), *self.options]


def plan_of(flags: Flags) -> Plan:
    """What starts the ranks.

    Raises:
        InvalidArgument: flags are missing, or exclude each other.
        NotSupported: jsrun is to start the ranks.
    """
    check(flags)
    plan = Plan(flags.num_proc)
    _take_variables(plan, flags)
    if is_elastic(flags):
        _take_elastic(plan, flags)
    else:
        _take_hosts(plan, flags)
    if _binds_by_itself(plan, flags):
        plan.options.append("--no-bind")
    if flags.output_filename:
        plan.options += [f"--output-dir={flags.output_filename}", "--split-output"]
    if flags.timestamps:
        plan.options.append("--timestamps")
    _take_notes(plan, flags)
    return plan


def check(flags: Flags) -> None:
    """All that the flags alone tell: no file and no host is looked at.

    Raises:
        InvalidArgument: the number of ranks is missing, or the hosts given cannot take them.
        NotSupported: jsrun is to start the ranks.
    """
    if flags.num_proc is None or flags.num_proc < 1:
        given = "not given" if flags.num_proc is None else flags.num_proc
        raise InvalidArgument(
            sentences(
                "horovodrun-np",
                f"the number of ranks is {given}.",
                "Horovod asks for it, as -np 4 or num_proc=4.",
                "pass it; `farandole run` takes one for each core by itself.",
            )
        )
    if flags.use_jsrun:
        raise NotSupported(
            sentences(
                "horovodrun-jsrun",
                "horovodrun got --jsrun.",
                "`farandole run` starts ranks by torchrun or mpirun.",
                "call jsrun yourself, as in `jsrun -n 4 python train.py`: ranks find each other "
                "as under mpirun.",
            )
        )
    if flags.hosts and not is_elastic(flags):
        hosts.place(hosts.parse_hosts(flags.hosts), flags.num_proc)


def _take_variables(plan: Plan, flags: Flags) -> None:
    variables = plan.variables
    for name, variable in _PLAIN.items():
        if getattr(flags, name) is not None:
            variables[variable] = str(getattr(flags, name))
    if flags.fusion_threshold_mb is not None:
        variables["HOROVOD_FUSION_THRESHOLD"] = str(flags.fusion_threshold_mb * _MIB)
    for name, variable in (
        ("timeline_mark_cycles", "HOROVOD_TIMELINE_MARK_CYCLES"),
        ("no_stall_check", "HOROVOD_STALL_CHECK_DISABLE"),
    ):
        if getattr(flags, name) is not None:
            variables[variable] = str(int(getattr(flags, name)))
    if flags.tcp_flag:
        variables |= {"FARANDOLE_LINK": "tcp", "NCCL_IB_DISABLE": "1"}
    if flags.nics:
        nics = ",".join(flags.nics)
        variables |= {"FARANDOLE_NETWORK_INTERFACE": nics, "NCCL_SOCKET_IFNAME": nics}


def _take_hosts(plan: Plan, flags: Flags) -> None:
    """Choose torchrun where all ranks are on this host and nothing asks for mpirun."""
    found = [hosts.Host("localhost", plan.ranks)]
    if flags.hosts:
        found = hosts.parse_hosts(flags.hosts)
    elif flags.hostfile:
        found = hosts.read_hostfile(Path(flags.hostfile))
    placed = hosts.place(found, plan.ranks)
    plan.variables[RANKS_OF_HOSTS] = ",".join(map(str, placed.values()))
    is_local = all(map(hosts.is_this_host, placed))
    asks = flags.use_mpi or flags.mpi_args or flags.binding_args
    if is_local and (flags.use_gloo or not asks):
        for name in ("mpi_args", "binding_args", "ssh_port", "ssh_identity_file"):
            if getattr(flags, name):
                flag = f"--{name.replace('_', '-')}"
                plan.notes.append(f"{flag}: ranks of this host are started by torchrun")
        return
    if flags.use_gloo:
        plan.notes.append("--gloo: ranks of several hosts are started by mpirun")
    plan.options += ["--hosts", ",".join(f"{name}:{count}" for name, count in placed.items())]
    arguments = _mpirun_arguments(flags)
    if not is_local:
        arguments += _exported()
    if maps_itself(arguments):
        del plan.variables[RANKS_OF_HOSTS]
    if arguments:
        plan.options.append(f"--mpirun-args={shlex.join(arguments)}")  # it may begin with a dash


def _binds_by_itself(plan: Plan, flags: Flags) -> bool:
    """Whether somebody else than `farandole run` says on which cores ranks are."""
    are_placed = any(each.startswith("--hosts") for each in plan.options)
    return bool(
        (flags.binding_args and are_placed)
        or flags.thread_affinity
        or os.environ.get("HOROVOD_THREAD_AFFINITY")
    )


def _take_elastic(plan: Plan, flags: Flags) -> None:
    """`farandole run` checks whether numbers fit together."""
    timeout = flags.elastic_timeout or os.environ.get("HOROVOD_ELASTIC_TIMEOUT")
    given = {
        "--min-ranks": plan.ranks if flags.min_num_proc is None else flags.min_num_proc,
        "--max-ranks": flags.max_num_proc,
        "--host-discovery-script": flags.host_discovery_script,
        "--slots-per-host": flags.slots,
        "--elastic-timeout": timeout,
        "--reset-limit": flags.reset_limit,
        "--hosts": flags.hosts,
        "--hostfile": flags.hostfile,
    }
    for option, value in given.items():
        if value is not None:
            plan.options += [option, str(value)]
    if flags.cooldown_range:
        plan.options += ["--cooldown", *map(str, flags.cooldown_range)]
    for name, flag in {"mpi_args": "--mpi-args", "binding_args": "--binding-args"}.items():
        if getattr(flags, name):
            plan.notes.append(f"{flag}: ranks that come and go are not started by mpirun")


def _mpirun_arguments(flags: Flags) -> list[str]:
    arguments: list[str] = []
    ssh = ["-p", str(flags.ssh_port)] if flags.ssh_port else []
    ssh += ["-i", flags.ssh_identity_file] if flags.ssh_identity_file else []
    if ssh:
        arguments += ["--prtemca", "plm_ssh_args", " ".join(ssh)]  # split at spaces, without quotes
    for name in ("binding_args", "mpi_args"):
        try:
            arguments += shlex.split(getattr(flags, name) or "")
        except ValueError as error:
            raise InvalidArgument(
                sentences(
                    "horovodrun-quotes",
                    f"--{name.replace('_', '-')} was '{getattr(flags, name)}'.",
                    f"it is split as in a shell: {error}.",
                    "close each quote.",
                )
            ) from error
    return arguments


def _exported() -> list[str]:
    """Options that give ranks of other hosts the variables of this process, as horovodrun does."""
    names = [
        name
        for name in sorted(os.environ)
        if name.isidentifier() and not _NOT_EXPORTED.match(name) and not passes_by_itself(name)
    ]
    return [word for name in names for word in ("-x", name)]


def _take_notes(plan: Plan, flags: Flags) -> None:
    given = vars(flags)
    for name, why in WITHOUT_EFFECT.items():
        if given.get(name) not in (None, False):
            plan.notes.append(f"--{name.replace('_', '-')}: {why}")
    if flags.timeline_mark_cycles and not flags.timeline_filename:
        plan.notes.append("--timeline-mark-cycles: there is no --timeline-filename")
    if not is_elastic(flags):
        for name, flag in ELASTIC.items():
            if given.get(name) is not None:
                plan.notes.append(f"{flag}: it takes --min-np or --host-discovery-script")


def is_elastic(flags: Flags) -> bool:
    """Whether ranks may come and go."""
    return flags.min_num_proc is not None or flags.host_discovery_script is not None
