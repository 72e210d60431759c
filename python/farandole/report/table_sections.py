# SPDX-License-Identifier: Apache-2.0
"""What is shown as a table: the job, waits, collectives, annotations, checkpoints, clocks."""

from __future__ import annotations

import html
from typing import Any

from farandole.pages.document import table
from farandole.report.figures import Figures
from farandole.report.plain_words import clock_time, duration, milliseconds, number, percent, size

_MOST_LETTERS = 60
"""Of a name."""
_MOST_NAMES = 100
"""That are shown; a program may number its annotations."""
_SPANS = ("times", "total s", "mean ms", "p95 ms", "longest ms")


def job(figures: Figures) -> str:
    """As in SageMaker's report."""
    found = figures["job"]
    rows = [
        ("start", clock_time(found["start_time"]), ""),
        ("end", clock_time(found["end_time"]), ""),
        ("duration", duration(found["job_duration"]), "100 %"),
    ]
    for phase in ("initialization", "training_loop", "finalization"):
        seconds, share = (found[f"{phase}_in_{unit}"] for unit in ("seconds", "percent"))
        rows.append((phase.replace("_", " "), duration(seconds), percent(share)))
    return f'<div class="words">{table(("", "time", "share"), rows)}</div>'


def exposed_communication(figures: Figures) -> str:
    """What each rank waits for after backward."""
    rows = [
        (
            f"rank {row['rank']}",
            *(
                f"{milliseconds(row['parts_ms'][part])} ({row['parts_percent'][part]:.1f} %)"
                for part in ("waiting", "transfer")
            ),
        )
        for row in figures["steps"]
    ]
    if not rows:
        return "<p>No communication after backward was recorded.</p>"
    heads = ("rank", "waiting for late ranks", "transfer")
    return f"<p>What backward does not hide, of a mean step.</p>{table(heads, rows)}"


def stragglers(figures: Figures) -> str:
    """Who came last, and how often."""
    rows = [
        (
            f"rank {row['rank']}",
            f"{row['times']:,}",
            percent(row["percent"]),
            f"{row['waited_s']:g} s",
        )
        for row in figures["stragglers"]
    ]
    if not rows:
        return "<p>No rank waited for another one.</p>"
    return (
        "<p>How often a rank was the last to come to an exchange, and how long each of the others "
        f"waited then.</p>{table(('last', 'times', 'of all', 'waited for'), rows)}"
    )


def data_loading(figures: Figures) -> str:
    """Waits for batches."""
    rows = [
        (
            f"rank {row['rank']}",
            "unknown" if row["workers"] is None else str(row["workers"]),
            percent(row["percent"]),
            *_span_cells(row),
        )
        for row in figures["data_loading"]
    ]
    if not rows:
        return "<p>No batch of a DataLoader was recorded.</p>"
    return table(("rank", "num_workers", "of the loop", *_SPANS), rows)


def collectives(figures: Figures) -> str:
    """Of all ranks, by name."""
    rows = [
        (
            html.escape(row["name"]),
            size(row["bytes"]),
            f"{row['waiting_s']:.4g}",
            *_span_cells(row),
        )
        for row in figures["collectives"]
    ]
    if not rows:
        return "<p>No collective of a group was recorded on the host.</p>"
    return table(("collective", "bytes", "waiting s", *_SPANS), rows)


def named(figures: Figures, key: str, nothing: str) -> str:
    """Annotations or checkpoints, of all ranks."""
    rows = [
        (html.escape(_shortened(row["name"])), *_span_cells(row))
        for row in figures[key][:_MOST_NAMES]
    ]
    if not rows:
        return f"<p>{nothing}</p>"
    others = len(figures[key]) - len(rows)
    more = f"<p>And {others:,} other names, which took less time.</p>" if others else ""
    return table(("name", *_SPANS), rows) + more


def ranks(figures: Figures) -> str:
    """Where ranks ran, and how well their clocks are compared."""
    rows = [
        (
            f"rank {rank['rank']}",
            html.escape(rank["node"]),
            html.escape(rank["host"]),
            f"{rank['clock_error_us']:.1f} us",
            number(rank["lost_events"]),
        )
        for rank in figures["ranks"]
    ]
    if not rows:
        return "<p>There is no timeline of any rank.</p>"
    return "<p>Times are those of rank 0's clock; the largest error of the comparison:</p>" + table(
        ("rank", "node", "host", "clock error", "lost events"), rows
    )


def sentences_of(found: list[str], nothing: str) -> str:
    """A list of sentences."""
    if not found:
        return f"<p>{nothing}</p>"
    return "<ul>" + "".join(f"<li>{html.escape(each)}</li>" for each in found) + "</ul>"


def _shortened(name: str) -> str:
    """So that the numbers beside it are in view."""
    return name if len(name) <= _MOST_LETTERS else f"{name[:_MOST_LETTERS]}..."


def _span_cells(row: dict[str, Any]) -> list[str]:
    return [number(row[key]) for key in ("count", "total_s", "mean_ms", "p95_ms", "max_ms")]
