# SPDX-License-Identifier: Apache-2.0
"""Draws all_reduce_hosts.svg and .png: python -m benchmarks.hosts.plot RESULTS_FOLDER."""

import sys
from pathlib import Path
from typing import Any

from farandole.bench.sizes import size_text
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter

from benchmarks.harness import figures
from benchmarks.harness.results import Row, rows_of
from benchmarks.hosts.lanes import LANES, layout_text
from benchmarks.hosts.summary import FILE, PLOT, PLOTTED_LAYOUT, PLOTTED_RATE, plotted

STYLES: dict[str, dict[str, Any]] = {  # lines differ in shape too
    "farandole": {"color": figures.BLUE, "marker": "o", "linewidth": 2.4},
    "farandole_bf16": {"color": figures.SKY, "marker": "s", "linestyle": "--"},
    "farandole_mpi": {"color": figures.GREEN, "marker": "D", "linestyle": ":"},
    "openmpi": {"color": figures.ORANGE, "marker": "v"},
    "gloo": {"color": figures.RED, "marker": "^"},
}
TICKS = [0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50, 100]


def draw(rows: list[Row], folder: Path) -> None:
    """One line a lane; nothing if the layout was not measured."""
    rows = plotted(rows)
    if not rows:
        return
    figure, (axes,) = figures.panels_of(1, 7.5, 4.6)
    draw_lines(axes, rows)
    first = rows[0]
    axes.set_title(
        f"all_reduce, {layout_text(PLOTTED_LAYOUT)}, {PLOTTED_RATE.replace('gbit', ' Gbit/s')}\n"
        f"{first['cores']} cores for all hosts ({first['cpu']}, torch {first['torch']})",
        fontsize=10,
    )
    figures.save(figure, folder, PLOT)


def draw_lines(axes: Axes, rows: list[Row]) -> None:
    """How many times plain TCP's time each takes, against bytes; both in powers."""
    sizes = sorted({row["bytes"] for row in rows})
    for lane, style in STYLES.items():
        ratios = {row["bytes"]: 1 / row["of_raw"] for row in rows if row["lane"] == lane}
        if ratios:
            axes.plot([*ratios], [*ratios.values()], markersize=5, label=LANES[lane], **style)
    axes.axhline(1, color="#777777", linewidth=0.9, label=LANES["raw"])
    axes.set(xscale="log", yscale="log", xlabel="bytes of the tensor")
    axes.set_ylabel("median time, x plain TCP\n(lower is better)")
    figures.tidy(axes, [*map(float, sizes)])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: size_text(int(size))))
    axes.yaxis.set_major_locator(FixedLocator(TICKS))
    axes.yaxis.set_minor_locator(FixedLocator([]))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda ratio, _: f"{ratio:g}"))
    axes.legend(frameon=False, fontsize=9)


if __name__ == "__main__":
    results = Path(sys.argv[1])
    draw(rows_of(results / FILE), results)
