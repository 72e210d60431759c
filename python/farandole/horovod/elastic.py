# SPDX-License-Identifier: Apache-2.0
"""horovodrun with ranks that come and go: its flags, checked."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import NoReturn

from farandole.errors import InvalidArgument, NotSupported, sentences
from farandole.horovod.flags import Flags
from farandole.horovod.plan import Plan

_TIMEOUT = "HOROVOD_ELASTIC_TIMEOUT"


@dataclass(frozen=True)
class ElasticSettings:
    """One elastic run."""

    plan: Plan
    """What starts ``plan.ranks`` ranks: those that a training begins with."""
    program: list[str]
    min_ranks: int
    max_ranks: int | None
    discovery_script: str | None
    """Prints a host on each line, as "h1:2"; None: the hosts of the plan alone."""
    slots_per_host: int
    """Of hosts without a number."""
    elastic_timeout_s: int
    """How long it waits for ``min_ranks`` slots."""
    reset_limit: int | None
    """How often ranks may come or go; None: without limit."""
    cooldown_s: tuple[int, int] | None
    """Least and most seconds that a failed host is left alone; None: for ever."""


def settings_of(flags: Flags, plan: Plan, program: list[str]) -> ElasticSettings:
    """Check the elastic flags.

    Raises:
        InvalidArgument: numbers do not fit together.
    """
    least = plan.ranks if flags.min_num_proc is None else flags.min_num_proc
    most = flags.max_num_proc
    cooldown = tuple(flags.cooldown_range) if flags.cooldown_range else None
    if not 1 <= least <= plan.ranks or (most is not None and most < plan.ranks):
        raise _wrong(
            f"-np {plan.ranks}, --min-np {least} and --max-np {most}",
            "a training begins with -np ranks, and has never less than --min-np or more than "
            "--max-np",
        )
    if flags.slots == 0 or (cooldown and cooldown[0] > cooldown[1]):
        raise _wrong(
            f"--slots-per-host {flags.slots} and --blacklist-cooldown-range {cooldown}",
            "a host takes at least one rank, and the range is the least and the most seconds",
        )
    return ElasticSettings(
        plan=plan,
        program=program,
        min_ranks=least,
        max_ranks=most,
        discovery_script=flags.host_discovery_script,
        slots_per_host=flags.slots or 1,
        elastic_timeout_s=flags.elastic_timeout or int(os.environ.get(_TIMEOUT, "600")),
        reset_limit=flags.reset_limit,
        cooldown_s=cooldown,
    )


def run_elastic(settings: ElasticSettings) -> NoReturn:
    """Refuse: the one place where horovodrun and horovod.run() start elastic runs.

    Raises:
        NotSupported: ranks cannot come and go under `farandole run` yet.
    """
    raise NotSupported(
        sentences(
            "horovodrun-elastic",
            f"an elastic run of {settings.min_ranks} to {settings.max_ranks or 'any number of'} "
            "ranks was asked for.",
            "`farandole run` starts a fixed number of ranks.",
            "pass -np alone, or start the script by `torchrun --nnodes MIN:MAX --max-restarts N`, "
            "which begins again with the ranks that are left.",
        )
    )


def _wrong(what: str, why: str) -> InvalidArgument:
    return InvalidArgument(
        sentences(
            "horovodrun-elastic-range",
            f"an elastic run was asked for with {what}.",
            f"{why}.",
            "pass numbers that fit together.",
        )
    )
