# SPDX-License-Identifier: Apache-2.0
"""One page of HTML that needs nothing else: verdicts, charts and the table, also on a phone."""

from __future__ import annotations

import html
import json

from farandole.bench.rows import Row
from farandole.bench.sizes import MIB
from farandole.bench.train import scaling
from farandole.bench.train.chart import COLOURS, Line, chart
from farandole.bench.train.lanes import TITLES
from farandole.bench.train.scaling import Series
from farandole.pages.document import LIGHT, document, table

_STYLE = """
.charts { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(20rem, 100%), 1fr));
  gap: 1rem; }
.legend i { display: inline-block; width: .9em; height: .9em; border-radius: 50%;
  margin-right: .35em; vertical-align: -0.1em; }
"""
_HEADS = (
    *("lane", "ranks", "global batch", "median ms", "middle half", "samples/s", "exposed ms"),
    *("MiB a rank", "threads"),
)


def page(rows: list[Row]) -> str:
    """The whole document; ``rows`` is not empty."""
    latest = max(rows, key=lambda row: str(row["timestamp"]))
    machine = latest["accelerator"] or f"{latest['cpu']}, {latest['cores']} cores"
    where = (
        f"{machine}; farandole {latest['farandole']}, torch {latest['torch']}; "
        f"{str(latest['timestamp'])[:10]}"
    )
    verdicts = "".join(f"<li>{html.escape(line)}</li>" for line in scaling.advice(rows))
    sections = "".join(_section(rows, kind) for kind in scaling.kinds_of(rows))
    data = json.dumps(rows).replace("<", "\\u003c")
    body = (
        f"<h1>Throughput of training steps</h1><p>{html.escape(where)}</p>\n"
        + (f"<h2>Ranks or one process?</h2><ul>{verdicts}</ul>\n" if verdicts else "")
        + f'{sections}\n<script type="application/json" id="rows">{data}</script>'
    )
    return document("farandole bench train", LIGHT + _STYLE, body)


def _section(rows: list[Row], kind: tuple[str, str]) -> str:
    """A model in a precision."""
    own = scaling.of_kind(rows, kind)
    parameters = f"{own[0]['parameters']:,} parameters"
    lanes = [lane for lane in TITLES if any(row["lane"] == lane for row in own)]
    legend = "".join(
        f'<li><i style="background:{COLOURS[lane]}"></i>{html.escape(TITLES[lane])}</li>'
        for lane in lanes
    )
    return (
        f"<h2>{html.escape(' '.join(kind))}, {parameters}</h2>\n"
        f'<ul class="legend">{legend}</ul>\n<div class="charts">{_charts(own)}</div>\n'
        f"{_table(own)}"
    )


def _charts(rows: list[Row]) -> str:
    singles = {row["global_batch"]: row for row in rows if row["lane"] == "single"}
    found = []
    for name, series in (("weak", scaling.weak(rows)), ("strong", scaling.strong(rows))):
        counts = {row["ranks"] for each in series for row in each.rows}
        if name == "strong" and len(counts) < 2:
            continue  # the same as the largest of weak scaling
        found.append(chart(f"{name} scaling", "samples/s", _throughputs(series, singles)))
        lines = [Line(each.lane, each.efficiencies()) for each in series]
        if len(counts) > 1:
            found.append(chart(f"efficiency, {name} scaling", "of ideal", lines))
    exposed = [
        Line(each.lane, [(row["ranks"], row["exposed_ms"]) for row in each.rows])
        for each in scaling.weak(rows)
        if all(row["exposed_ms"] is not None for row in each.rows)
    ]
    if exposed:
        found.append(chart("exposed communication", "ms a step", exposed))
    memory = [
        Line(each.lane, [(row["ranks"], row["memory_bytes"] / MIB) for row in each.rows])
        for each in scaling.weak(rows)
    ]
    return "\n".join([*found, chart("memory", "MiB a rank", memory)])


def _throughputs(series: list[Series], singles: dict[int, Row]) -> list[Line]:
    """The series, and one process with all cores at the batches of the same places."""
    lines = [_throughput(each.lane, [(row["ranks"], row) for row in each.rows]) for each in series]
    batches = {row["ranks"]: row["global_batch"] for each in series for row in each.rows}
    pairs = [(count, singles[batches[count]]) for count in sorted(batches)
             if batches[count] in singles]  # fmt: skip
    return [*lines, _throughput("single", pairs)] if pairs else lines


def _throughput(lane: str, pairs: list[tuple[int, Row]]) -> Line:
    points = [(float(count), float(row["samples_per_s"])) for count, row in pairs]
    spans = []
    for count, row in pairs:
        low, high = (row["global_batch"] / ms * 1e3 for ms in reversed(row["quartiles_ms"]))
        spans.append((float(count), low, high))
    return Line(lane, points, spans)


def _table(rows: list[Row]) -> str:
    order = list(TITLES)
    rows = sorted(
        rows, key=lambda row: (row["ranks"], row["global_batch"], order.index(row["lane"]))
    )
    cells = []
    for row in rows:
        low, high = row["quartiles_ms"]
        cells.append(
            (
                html.escape(TITLES[row["lane"]]),
                row["ranks"],
                row["global_batch"],
                f"{row['median_ms']:.2f}",
                f"{low:.2f} to {high:.2f}",
                f"{row['samples_per_s']:.2f}",
                "" if row["exposed_ms"] is None else f"{row['exposed_ms']:.2f}",
                f"{row['memory_bytes'] / MIB:.1f}",
                row["threads"],
            )
        )
    return table(_HEADS, cells)
