# SPDX-License-Identifier: Apache-2.0
"""Draws times and bus bandwidths against bytes, as .png or .svg. Needs matplotlib."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

from farandole.bench.rows import Row
from farandole.bench.sizes import size_text
from farandole.errors import InvalidArgument, NotSupported, sentences

# Okabe and Ito's colours, which stay apart for colour-blind eyes.
_COLOURS = {"farandole": "#0072B2", "gloo": "#D55E00", "nccl": "#009E73", "mpi": "#E69F00"}
_MARKERS = "os^Dvx"
_MOST_COLUMNS = 4


def check(path: Path) -> None:
    """Finds out before measuring whether the plot can be drawn.

    Raises:
        InvalidArgument: the name ends in something else than .png or .svg.
        NotSupported: matplotlib is not installed.
    """
    if path.suffix not in (".png", ".svg"):
        raise InvalidArgument(
            sentences(
                "bench-plot-ending",
                f"--plot was '{path}'.",
                "plots are PNG or SVG, which the name tells.",
                "pass a name that ends in .png or .svg.",
            )
        )
    if importlib.util.find_spec("matplotlib") is None:
        raise NotSupported(
            sentences(
                "bench-plot-missing",
                "--plot cannot draw.",
                "matplotlib is not installed in this Python.",
                "pip install matplotlib, or leave --plot out and use --json.",
            )
        )


def draw(rows: list[Row], path: Path) -> None:
    """A column for each operation, reduction and dtype: times above bus bandwidths."""
    import matplotlib as mpl

    mpl.use("Agg")
    from matplotlib import pyplot

    measured = [row for row in rows if "cannot" not in row]
    kinds = list(dict.fromkeys((row["operation"], row["op"], row["dtype"]) for row in measured))
    if not kinds:
        return
    columns = min(len(kinds), _MOST_COLUMNS)
    bands = -(-len(kinds) // columns)
    figure, panels = pyplot.subplots(
        2 * bands,
        columns,
        figsize=(5.5 * columns, 7.5 * bands),
        squeeze=False,
        layout="constrained",
    )
    ranks = sorted({row["ranks"] for row in measured})
    for place, kind in enumerate(kinds):
        band, column = divmod(place, columns)
        above, below = panels[2 * band][column], panels[2 * band + 1][column]
        own = [row for row in measured if (row["operation"], row["op"], row["dtype"]) == kind]
        _draw_lines(above, own, "time_us", ranks)
        _draw_lines(below, own, "busbw_gb_s", ranks)
        title = " ".join(word for word in kind if word != "none")
        above.set(title=title, yscale="log", ylabel="median time (us)")
        below.set(ylabel="bus bandwidth (GB/s)")
        above.legend(fontsize=8)
    for panel in panels.flat:
        panel.set_visible(bool(panel.lines))
    first = measured[0]
    figure.suptitle(f"{first['accelerator'] or first['cpu']}, torch {first['torch']}", fontsize=10)
    figure.savefig(path, dpi=110)
    pyplot.close(figure)


def _draw_lines(axes: Any, rows: list[Row], figure: str, ranks: list[int]) -> None:
    """One line for each lane and number of ranks, whose marker is the same in all panels."""
    for lane in dict.fromkeys(row["lane"] for row in rows):
        for place, count in enumerate(ranks):
            own = [row for row in rows if (row["lane"], row["ranks"]) == (lane, count)]
            own.sort(key=lambda row: row["bytes"])
            if not own:
                continue
            axes.plot(
                [row["bytes"] for row in own],
                [row[figure] for row in own],
                color=_COLOURS.get(lane),
                marker=_MARKERS[place % len(_MARKERS)],
                markersize=4,
                label=f"{lane}, {count} rank{'s' * (count > 1)}",
            )
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter(lambda size, _: size_text(int(size)))
    axes.tick_params(axis="x", labelsize=7, labelrotation=30)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
