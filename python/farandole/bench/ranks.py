# SPDX-License-Identifier: Apache-2.0
"""Where ranks come from: a launcher that started this process, or `farandole run`."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
from collections.abc import Mapping, Sequence
from types import FrameType

from farandole import _C
from farandole.errors import InvalidArgument, sentences
from farandole.run.child import FORWARDED
from farandole.run.cores import usable_cores

_PR_SET_PDEATHSIG = 1
_LIBC = ctypes.CDLL(None)


def launcher() -> str:
    """What started this process as a rank: "torchrun", "mpirun", "srun", or "alone"."""
    if "OMPI_COMM_WORLD_SIZE" in os.environ:
        return "mpirun"  # also where `farandole run` gave its ranks the variables of torchrun
    return _C.find_launch().launcher


def is_first() -> bool:
    """Whether this process is rank 0, or alone: it prints what all would."""
    return _C.find_launch().rank == 0


def check_count(asked: Sequence[int]) -> list[int]:
    """The number of ranks that a launcher started, which -n may repeat.

    Raises:
        InvalidArgument: -n asks for others.
    """
    launch = _C.find_launch()
    if asked and list(asked) != [launch.world_size]:
        raise InvalidArgument(
            sentences(
                "bench-ranks",
                f"-n asks for {', '.join(map(str, asked))} ranks, and {launcher()} started "
                f"{launch.world_size}.",
                "under a launcher exactly its ranks are measured; iterations are --iters.",
                "leave -n out, or call farandole bench without the launcher.",
            )
        )
    return [launch.world_size]


def default_count(device: str) -> int:
    """One rank for each core or GPU."""
    if device == "cuda":
        import torch

        return torch.cuda.device_count()
    return usable_cores()


def run_ranks(
    ranks: int,
    arguments: Sequence[str],
    *,
    by_mpirun: bool = False,
    bind: bool = True,
    variables: Mapping[str, str] | None = None,
) -> int:
    """Runs `farandole bench` with these arguments on ranks of this host; returns the status.

    ``bind`` divides the cores among them. Signals that end this process are passed on, and the
    ranks end with it if it is killed.
    """
    start = ["--hosts", f"localhost:{ranks}"] if by_mpirun else ["-n", str(ranks)]
    command = [sys.executable, "-m", "farandole", "run", *start, "--quiet", "--no-prefix"]
    command += [] if bind else ["--no-bind"]
    command += ["-m", "farandole", "bench", *arguments]
    started = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        env={**os.environ, **(variables or {})},
        start_new_session=True,  # signals of the terminal reach it through this process alone
        preexec_fn=_end_with_the_parent,
    )
    ended_by: list[int] = []

    def pass_on(number: int, _: FrameType | None) -> None:
        ended_by.append(number)
        started.send_signal(number)

    before = {number: signal.signal(number, pass_on) for number in FORWARDED}
    try:
        status = started.wait()
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    if ended_by:
        raise SystemExit(128 + ended_by[0])
    return status if status >= 0 else 128 - status


def _end_with_the_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
