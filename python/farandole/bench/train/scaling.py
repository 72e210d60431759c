# SPDX-License-Identifier: Apache-2.0
"""What rows say together: efficiency, and whether one process is the better choice."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from farandole.bench.rows import Row
from farandole.bench.train.lanes import OURS, TITLES
from farandole.pages.scale import short_number


@dataclass(frozen=True)
class Series:
    """One lane of a model in a precision, over numbers of ranks."""

    lane: str
    rows: list[Row]
    """By rising ranks; one for each number of ranks."""

    def efficiencies(self) -> list[tuple[int, float]]:
        """Samples/s of a rank, against those of a rank among the fewest ranks, mostly of one."""
        base = self.rows[0]["samples_per_s"] / self.rows[0]["ranks"]
        return [(row["ranks"], row["samples_per_s"] / row["ranks"] / base) for row in self.rows]


def kinds_of(rows: Iterable[Row]) -> list[tuple[str, str]]:
    """Models and precisions, in the order in which they were measured."""
    return list(dict.fromkeys((row["model"], row["precision"]) for row in rows))


def of_kind(rows: Iterable[Row], kind: tuple[str, str]) -> list[Row]:
    """The rows of a model and a precision."""
    return [row for row in rows if (row["model"], row["precision"]) == kind]


def weak(rows: Iterable[Row]) -> list[Series]:
    """Each rank has the same number of samples: as many as most rows agree on."""
    own = [row for row in rows if row["lane"] != "single"]
    return _series(own, [(row["global_batch"] / row["ranks"], _processor_of(row)) for row in own])


def strong(rows: Iterable[Row]) -> list[Series]:
    """All ranks together have the same number of samples."""
    own = [row for row in rows if row["lane"] != "single"]
    return _series(own, [(row["global_batch"], _processor_of(row)) for row in own])


Processor = tuple[str, int]  # device, and threads where they compute


def _processor_of(row: Row) -> Processor:
    """What a rank computes with: on the CPU sweeps up to other numbers of ranks differ in it."""
    return row["device"], row["threads"] if row["device"] == "cpu" else 0


def _series(rows: list[Row], sizes: list[tuple[float, Processor]]) -> list[Series]:
    """The series of the size that occurs with the most numbers of ranks; the larger of equals.

    Rows of one series have the same samples and compute with the same.
    """
    counts: dict[tuple[float, Processor], set[int]] = {}
    for row, size in zip(rows, sizes, strict=True):
        counts.setdefault(size, set()).add(row["ranks"])
    if not counts:
        return []
    chosen = max(counts, key=lambda size: (len(counts[size]), size))
    kept = [row for row, size in zip(rows, sizes, strict=True) if size == chosen]
    found = []
    for lane in TITLES:
        by_ranks = {row["ranks"]: row for row in kept if row["lane"] == lane}
        if by_ranks:
            found.append(Series(lane, [by_ranks[count] for count in sorted(by_ranks)]))
    return found


def efficiencies(rows: list[Row]) -> list[str]:
    """A line for each model, kind of scaling and lane, as "... of ours: 0.93 on 2, 0.90 on 4"."""
    lines = []
    for kind in kinds_of(rows):
        own = of_kind(rows, kind)
        for name, series in (("weak", weak(own)), ("strong", strong(own))):
            for each in series:
                found = ", ".join(f"{value:.2f} on {n}" for n, value in each.efficiencies()[1:])
                if found:
                    lines.append(
                        f"{' '.join(kind)}, {name} scaling, efficiency of {each.lane}: {found}"
                    )
    return lines


def advice(rows: list[Row]) -> list[str]:
    """For each model, batch and number of ranks: ranks or one process, and why."""
    lines = []
    for kind in kinds_of(rows):
        own = of_kind(rows, kind)
        singles = one_process(own)
        cells = sorted({_cell_of(row) for row in own if row["ranks"] > 1})
        for cell in cells:
            batch = cell[1]
            lanes = {row["lane"]: row for row in own if _cell_of(row) == cell}
            ours = [lanes[lane] for lane in OURS if lane in lanes]
            if ours and batch in singles:
                best = max(ours, key=lambda row: float(row["samples_per_s"]))
                text = compared(best, singles[batch], lanes.get("limit"))
                lines.append(f"{' '.join(kind)}, global batch {batch}: {text}")
    return lines


def _cell_of(row: Row) -> tuple[int, int, Processor]:
    return row["ranks"], row["global_batch"], _processor_of(row)


def one_process(rows: list[Row]) -> dict[int, Row]:
    """By global batch, the faster of one process with all cores and one with those of a rank."""
    found: dict[int, Row] = {}
    for row in rows:
        if row["lane"] == "single" or (row["lane"], row["ranks"]) == ("limit", 1):
            best = found.setdefault(row["global_batch"], row)
            if row["samples_per_s"] > best["samples_per_s"]:
                found[row["global_batch"]] = row
    return found


def name_of(single: Row) -> str:
    """One process, and what it has."""
    if single["lane"] == "single":
        return TITLES["single"]
    if single["device"] != "cpu":
        return "one process with one GPU"
    return f"one process with {single['threads']} thread{'s' * (single['threads'] > 1)}"


def compared(ours: Row, single: Row, limit: Row | None) -> str:
    """Which is faster, and why; medians whose middle halves overlap do not tell."""
    ratio = ours["samples_per_s"] / single["samples_per_s"]
    ranks = ours["ranks"]
    figures = (
        f"{short_number(ours['samples_per_s'])} samples/s on {ranks} ranks "
        f"({TITLES[ours['lane']]}), {short_number(single['samples_per_s'])} in {name_of(single)}, "
        f"{ratio:.2f}x"
    )
    low, high = ours["quartiles_ms"]
    low_single, high_single = single["quartiles_ms"]
    if low <= high_single and low_single <= high:
        return f"no difference beyond noise: {figures}."
    if ratio > 1:
        return f"{ranks} ranks are the better choice: {figures}."
    return f"one process is the better choice: {figures}. Why: {_reason(ours, single, limit)}"


def _reason(ours: Row, single: Row, limit: Row | None) -> str:
    exposed = ""
    if ours["exposed_ms"] is not None:
        part = ours["exposed_ms"] / ours["median_ms"]
        exposed = (
            f"{short_number(ours['exposed_ms'])} ms of its {short_number(ours['median_ms'])} ms a "
            f"step, {part:.0%}, "
            "are communication and waiting that computing does not hide"
        )
    if limit is None:
        return f"{exposed or 'not known, as the lane limit was not measured'}."
    reach = f"ranks that never communicate reach {short_number(limit['samples_per_s'])} samples/s"
    if limit["samples_per_s"] <= single["samples_per_s"]:
        return (
            f"even {reach}: dividing the batch and the cores among {ours['ranks']} ranks costs "
            "more than they gain, so no communication can be fast enough. A larger batch may help."
        )
    if limit["samples_per_s"] - ours["samples_per_s"] > 0 and exposed:
        return f"{reach}, so communication costs the difference: {exposed}."
    return f"{reach}, so what ranks do for communication costs the difference."
