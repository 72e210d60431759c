# SPDX-License-Identifier: Apache-2.0
"""What a profile lacks and what could not be read, in plain words."""

from __future__ import annotations

import itertools

from farandole.profiler.profile import Profile

_MOST_RANKS = 8
"""That are named one by one."""


def missing_from(profile: Profile) -> list[str]:
    """What the report therefore cannot show."""
    found = []
    ranks = profile.timeline.ranks()
    if not ranks:
        found.append(
            "There is no timeline of any rank, so nothing is known of steps: "
            "farandole.profiler.start() records one."
        )
    present = {each.rank for each in ranks}
    world_size = max((each.world_size for each in ranks), default=0)
    absent = (rank for rank in range(world_size) if rank not in present)
    some_absent = list(itertools.islice(absent, _MOST_RANKS + 1))
    if some_absent:
        found.append(f"Of {_ranks(some_absent)} there is no timeline: was its folder copied here?")
    idle = sorted(present - {each.rank for each in profile.steps()})
    if idle:
        found.append(f"Of {_ranks(idle)} no step was recorded.")
    several = max((len(each.processes) for each in ranks), default=1)
    if several > 1:
        found.append(
            f"{several} processes of one rank have recorded: it was started again, or several jobs "
            "have written into this folder. What they did is added up."
        )
    for each in ranks:
        if each.lost_events:
            found.append(
                f"Rank {each.rank} lost {each.lost_events} events for which the recorder had no "
                "room."
            )
    found += _missing_metrics(profile)
    return found


def unread_of(profile: Profile) -> list[str]:
    """Files and lines that were left out."""
    return [f"{each.file}: {_words(each.what, each.amount)}." for each in profile.problems()]


def _missing_metrics(profile: Profile) -> list[str]:
    metrics = profile.metrics
    if not metrics.nodes():
        return [
            "There are no system metrics, so nothing is known of cores, memory, disks, network and "
            "GPUs: farandole.profiler.start() records them where psutil is installed."
        ]
    found = []
    nodes = {rank.node for rank in profile.timeline.ranks()} - set(metrics.nodes())
    if nodes:
        found.append(f"There are no system metrics of {', '.join(sorted(nodes))}.")
    if not metrics.of("GPUUtilization"):
        found.append(
            "There are no metrics of GPUs: no GPU, no driver of NVIDIA, or no nvidia-ml-py."
        )
    return found


def _ranks(numbers: list[int]) -> str:
    shown = ", ".join(map(str, numbers[:_MOST_RANKS]))
    shown += " ..." if len(numbers) > _MOST_RANKS else ""
    return f"rank {shown}" if len(numbers) == 1 else f"ranks {shown}"


def _words(what: str, amount: int) -> str:
    if what == "damaged lines":
        return f"{amount} damaged lines were left out"
    if what == "bytes of an unfinished line":
        return f"its last line is unfinished ({amount} bytes), as that of a killed process"
    if what == "events without the header of a rank":
        return f"{amount} events were left out, since the file does not say of which rank they are"
    return what
