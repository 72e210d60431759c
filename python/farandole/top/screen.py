# SPDX-License-Identifier: Apache-2.0
"""The tables of `farandole top`, as plain text in 80 columns."""

from __future__ import annotations

from farandole.top.recent import WINDOW_S, HostNow, Now, RankNow

COLUMNS = 80
_PARTS = {
    "data": "data",
    "forward": "forw",
    "backward": "back",
    "communication": "comm",
    "optimizer": "opt",
    "checkpoint": "ckpt",
    "gc": "gc",
    "other": "rest",
}
_RANKS = (
    f"{'rank':>4} {'host':<8} {'steps/s':>8} {'step':>8} "
    + " ".join(f"{title:>4}" for title in _PARTS.values())
)  # fmt: skip


def screen_of(now: Now, folder: str, clock_s: float) -> str:
    """All lines; ``clock_s`` is the time, in seconds since 1970."""
    lines = [f"{_age(now, clock_s)}; the last {WINDOW_S} s of {folder}", ""]
    if now.ranks:
        lines += [f"{_RANKS} waits", *map(_rank_line, now.ranks)]
        lines.append("parts in % of a step; comm: after backward; waits: for which rank")
    else:
        lines.append("no steps were recorded yet")
    lines.append("")
    if now.hosts:
        lines.append(
            f"{'host':<10} {'cores':>6} {'busy %':>7} {'io wait %':>10} {'memory %':>9} "
            f"{'GPUs':>5} {'busy %':>7} {'memory %':>9}"
        )
        lines += map(_host_line, now.hosts)
    else:
        lines.append("no metrics of hosts were recorded yet")
    return "\n".join(line[:COLUMNS] for line in lines)


def _age(now: Now, clock_s: float) -> str:
    if now.written_s is None:
        return "nothing was written yet"
    return f"written {max(0, round(clock_s - now.written_s))} s ago"


def _rank_line(rank: RankNow) -> str:
    parts = " ".join(f"{rank.percent.get(part, 0):>4.0f}" for part in _PARTS)
    waits_for = "-" if rank.waits_for is None else str(rank.waits_for)
    return (
        f"{rank.rank:>4} {rank.node:<8.8} {rank.steps_per_s:>8.2f} {rank.step:>8} {parts} "
        f"{waits_for:>5}"
    )


def _host_line(host: HostNow) -> str:
    return (
        f"{host.node:<10.10} {host.core_count:>6} {_percent(host.cores):>7} "
        f"{_percent(host.io_wait):>10} {_percent(host.memory):>9} {host.gpu_count:>5} "
        f"{_percent(host.gpus):>7} {_percent(host.gpu_memory):>9}"
    )


def _percent(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
