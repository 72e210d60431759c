# SPDX-License-Identifier: Apache-2.0
"""Loaders of data: as many as cores can run, and whether the loop waits for them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from farandole.profiler.profile import Profile
from farandole.profiler.rules.figures import listed, plain, quantile
from farandole.profiler.rules.rule import ProfilerRule, RuleReport
from farandole.profiler.rules.throttling import disk_waits_of


@dataclass(frozen=True, kw_only=True)
class Dataloader(ProfilerRule):
    """Fires if a host has too few or too many loading processes, or a rank waits for its batches.

    SageMaker's rule looks at the processes alone.
    """

    min_threshold: float = 70
    """Percent of the host's cores: fewer loading processes are too few."""
    max_threshold: float = 200
    """Percent of the host's cores: more loading processes are too many."""
    wait_threshold: float = 10
    """Percent of the loop's time that a rank may wait for batches (ours)."""
    patience: int = 10
    """How many batches are there at least."""

    def evaluate(self, profile: Profile) -> RuleReport:
        """Judge each host, and each rank."""
        waits = {
            rank.rank: spans.durations_us
            for rank in profile.timeline.ranks()
            if (spans := rank.spans("data"))
        }
        datapoints = sum(map(len, waits.values()))
        if datapoints <= self.patience:
            return self._no_data(
                f"{datapoints} batches of a DataLoader were recorded; it takes more than "
                f"{self.patience}.",
                datapoints=datapoints,
            )
        hosts = self._hosts(profile)
        shares = _wait_percent(profile)
        durations_s = np.concatenate(list(waits.values())) / 1e6
        figures: dict[str, Any] = {
            "hosts": hosts,
            "waiting_percent": {f"rank {rank}": plain(share) for rank, share in shares.items()},
            "dataloading_time": {
                f"p{percent}": quantile(durations_s, percent / 100) for percent in (25, 50, 95)
            },
        }
        slow_disks = {}
        for node in profile.metrics.nodes():
            of_node = [shares[rank.rank] for rank in profile.steps() if rank.node == node]
            slow_disks[node] = disk_waits_of(profile, node, max(of_node, default=0.0))
        slow_disks = {node: waits for node, waits in slow_disks.items() if waits}
        workers = {
            rank.rank: rank.spans("data").largest("num_workers")
            for rank in profile.timeline.ranks()
        }
        phrases, advice = self._judge(hosts, shares, workers, slow_disks)
        if not phrases:
            what = "batches are there in time" if hosts else _UNKNOWN
            return self._quiet(f"{what}.", datapoints=datapoints, figures=figures)
        return self._fired(
            "; ".join(phrases) + ".",
            advice,
            triggered=len(phrases),
            datapoints=datapoints,
            figures=figures,
        )

    def _hosts(self, profile: Profile) -> dict[str, dict[str, float]]:
        """Of those whose number of loaders and cores is known."""
        found: dict[str, dict[str, float]] = {}
        for node in sorted({rank.node for rank in profile.timeline.ranks()}):
            ranks = [rank for rank in profile.timeline.ranks() if rank.node == node]
            loaders = [rank.spans("data").largest("num_workers") for rank in ranks]
            cores = len(profile.metrics.of("CPUUtilization", node=node))
            known = [each for each in loaders if each is not None]
            if cores and known:
                found[node] = {"cores": cores, "dataloaders": sum(known)}
        return found

    def _judge(
        self,
        hosts: dict[str, dict[str, float]],
        shares: dict[int, float],
        workers: dict[int, int | None],
        slow_disks: dict[str, str],
    ) -> tuple[list[str], str]:
        """What is wrong, and the advice; nothing if nothing is."""
        late = sorted(
            (rank for rank, share in shares.items() if share > self.wait_threshold),
            key=lambda rank: -shares[rank],
        )
        percent = {
            node: 100 * found["dataloaders"] / found["cores"] for node, found in hosts.items()
        }
        few = [node for node, share in percent.items() if share < self.min_threshold]
        many = [node for node, share in percent.items() if share > self.max_threshold]
        phrases = []
        if late:
            names = listed([_late_rank(rank, shares[rank], workers[rank]) for rank in late])
            phrases.append(f"the loop waits for batches: {names}")
            phrases += [f"on {node} {waits}" for node, waits in slow_disks.items()]
        for nodes, word in ((few, "few"), (many, "many")):
            if nodes:
                counts = [
                    f"{hosts[node]['dataloaders']:g} for {hosts[node]['cores']:g} cores of {node}"
                    for node in nodes
                ]
                phrases.append(f"there are {word} loading processes: {listed(counts)}")
        if many:
            return phrases, "set a smaller num_workers: they take the cores from each other."
        if late and slow_disks:
            return phrases, "read from a faster disk or from memory, in fewer and larger files."
        advice = "set a larger num_workers, with persistent_workers=True and prefetch_factor."
        if few and not late:
            advice = "nothing waits for batches now; if that changes, set a larger num_workers."
        return phrases, advice


_UNKNOWN = "batches are there in time; how many loading processes there are was not recorded"


def _late_rank(rank: int, percent: float, workers: int | None) -> str:
    number = "" if workers is None else f", num_workers={workers}"
    return f"rank {rank} ({percent:.0f} % of its time{number})"


def _wait_percent(profile: Profile) -> dict[int, float]:
    """Of the time of the loop, by rank."""
    return {
        rank.rank: 100 * float(rank.parts_us["data"].sum() / max(1.0, rank.loop_us.sum()))
        for rank in profile.steps()
    }
