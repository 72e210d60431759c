# SPDX-License-Identifier: Apache-2.0
"""What torchrun and mpirun start in place of each rank; it becomes the program by exec.

So the program keeps the pid that the launcher knows, gets its signals, and gives its exit status.
Run by path with `python -I -S`, and imports neither torch nor the package: it takes milliseconds.

    rank.py [--socket NAME] [--launcher PID] [--of-mpirun] [--hosts 2,2 [--sagemaker-hosts h1,h2]]
            [--folder PATH] [--no-bind] [--quiet] -- program ...
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import json
import os
import signal
import socket
import sys
import types
from pathlib import Path
from typing import NoReturn

PR_SET_PDEATHSIG = 1
NUMBERS = {
    "RANK": "OMPI_COMM_WORLD_RANK",
    "WORLD_SIZE": "OMPI_COMM_WORLD_SIZE",
    "LOCAL_RANK": "OMPI_COMM_WORLD_LOCAL_RANK",
    "LOCAL_WORLD_SIZE": "OMPI_COMM_WORLD_LOCAL_SIZE",
}
RANKS_OF_HOSTS = "FARANDOLE_RANKS_OF_HOSTS"
"""A variable with the number of ranks of each host, as "2,2": then scripts for Horovod find its
variables."""
CANNOT_RUN, NOT_FOUND = 126, 127  # exit statuses, as in shells


def main(arguments: list[str]) -> NoReturn:
    """Prepares this process, then runs the program in it."""
    end = arguments.index("--")
    options, program = arguments[:end], arguments[end + 1 :]
    signal.signal(signal.SIGINT, signal.SIG_DFL)
    if "--of-mpirun" in options:
        take_numbers()
    if "--hosts" in options:
        take_local_numbers(value_of("--hosts", options))
    if "--sagemaker-hosts" in options:
        names = value_of("--sagemaker-hosts", options).split(",")
        counts = list(map(int, value_of("--hosts", options).split(",")))
        os.environ["SM_CURRENT_HOST"] = names[place_of(int(os.environ["RANK"]), counts)[0]]
    rank = int(os.environ["RANK"])
    if RANKS_OF_HOSTS in os.environ:
        take_names_of_horovod(rank)
    end_with_the_launcher(int(value_of("--launcher", options)) if "--launcher" in options else None)
    if "--socket" in options:
        hand_over_output(value_of("--socket", options), rank)
    take_cores(bind="--no-bind" not in options, say="--quiet" not in options)
    if rank != 0:
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
    os.environ.setdefault("PYTHONUNBUFFERED", "1")
    if "--folder" in options:
        enter(value_of("--folder", options))
    become(program)


def value_of(option: str, options: list[str]) -> str:
    """The word behind an option."""
    return options[options.index(option) + 1]


def take_numbers() -> None:
    """Gives a process of mpirun the variables of torchrun too, which many programs read."""
    for name, of_mpirun in NUMBERS.items():
        if of_mpirun in os.environ:
            os.environ[name] = os.environ[of_mpirun]


def take_local_numbers(text: str) -> None:
    """Of this host, from the numbers of ranks of all: Open MPI 5 tells a wrong size if they differ.

    (OMPI_COMM_WORLD_LOCAL_SIZE of every rank is that of the last host.)
    """
    counts = list(map(int, text.split(",")))
    host, local_rank = place_of(int(os.environ["RANK"]), counts)
    os.environ["LOCAL_RANK"], os.environ["LOCAL_WORLD_SIZE"] = str(local_rank), str(counts[host])


def place_of(rank: int, counts: list[int]) -> tuple[int, int]:
    """Its host, and its number there, if hosts with so many ranks are filled in order."""
    host = 0
    while rank >= counts[host]:
        rank -= counts[host]
        host += 1
    return host, rank


def take_names_of_horovod(rank: int) -> None:
    """Sets the variables that horovodrun sets, which some scripts read."""
    counts = list(map(int, os.environ.pop(RANKS_OF_HOSTS).split(",")))
    host, local_rank = place_of(rank, counts)
    peers = [index for index, count in enumerate(counts) if count > local_rank]
    numbers = {
        "RANK": rank,
        "SIZE": sum(counts),
        "LOCAL_RANK": local_rank,
        "LOCAL_SIZE": counts[host],
        "CROSS_RANK": peers.index(host),
        "CROSS_SIZE": len(peers),
    }
    os.environ.update({f"HOROVOD_{name}": str(number) for name, number in numbers.items()})
    os.environ["HOROVOD_HOSTNAME"] = socket.gethostname()


def end_with_the_launcher(pid: int | None) -> None:
    """Asks the kernel to kill this process when the launcher has died without ending it.

    Args:
        pid: Of the launcher, if it is known. It may have died before.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    if pid is not None and os.getppid() != pid:
        os.kill(os.getpid(), signal.SIGKILL)


def hand_over_output(name: str, rank: int) -> None:
    """Makes pipes of the standard outputs; `farandole run` reads their other ends.

    It gets a descriptor of this process as well, by which it sees which rank ends first.
    """
    outputs, errors = os.pipe(), os.pipe()
    files = [outputs[0], errors[0]]
    with contextlib.suppress(OSError):  # an old kernel: the launcher's order is used
        files.append(os.pidfd_open(os.getpid()))
    attempt = int(os.environ.get("TORCHELASTIC_RESTART_COUNT", "0"))
    hello = {"rank": rank, "pid": os.getpid(), "attempt": attempt}
    with socket.socket(socket.AF_UNIX) as monitor:
        monitor.connect("\0" + name)
        socket.send_fds(monitor, [json.dumps(hello).encode()], files)
    os.dup2(outputs[1], 1)
    os.dup2(errors[1], 2)


def take_cores(*, bind: bool, say: bool) -> None:
    """Binds this process to its share of the cores; sets OMP_NUM_THREADS unless it is set."""
    package = types.ModuleType("farandole")  # without its __init__, which imports torch
    package.__path__ = [str(Path(__file__).resolve().parents[1])]
    sys.modules["farandole"] = package
    from farandole.run.cores import describe, divide_this_host

    local_rank = int(os.environ["LOCAL_RANK"])
    ranks = int(os.environ["LOCAL_WORLD_SIZE"])
    division = divide_this_host(ranks)
    threads = os.environ.get("OMP_NUM_THREADS")
    if say and local_rank == 0:
        text = describe(division, ranks, bind=bind, threads=threads)
        print(f"farandole run: host {socket.gethostname()}: {text}", file=sys.stderr, flush=True)
    if bind and division.sets:
        os.sched_setaffinity(0, division.sets[local_rank])
    if threads is None:
        os.environ["OMP_NUM_THREADS"] = str(division.threads)


def enter(folder: str) -> None:
    """Makes it the folder in which the program runs; ends if that is impossible."""
    try:
        os.chdir(folder)
    except OSError as error:
        text = f"farandole run: cannot run in the folder {folder}: {error.strerror}."
        print(text, file=sys.stderr, flush=True)
        os._exit(CANNOT_RUN)


def become(program: list[str]) -> NoReturn:
    """Runs the program in this process; ends as a shell does if that is impossible."""
    try:
        os.execvp(program[0], program)
    except OSError as error:
        text = f"farandole run: cannot run {program[0]}: {error.strerror}."
        if error.errno == errno.ENOEXEC:
            text += " A script needs a first line such as #!/bin/sh."
        print(text, file=sys.stderr, flush=True)
        os._exit(NOT_FOUND if error.errno == errno.ENOENT else CANNOT_RUN)


if __name__ == "__main__":
    main(sys.argv[1:])
