# SPDX-License-Identifier: Apache-2.0
"""Draws all_reduce.svg and .png from the rows of one run: python plot.py RESULTS_FOLDER."""

import json
import math
import statistics
import sys
from pathlib import Path

import matplotlib as mpl

mpl.use("Agg")

from lanes import LANES
from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter
from report import Results, Row, size_text

# Okabe and Ito's colours, which stay apart for colour-blind eyes; lines differ in shape too.
STYLES = {
    "farandole_symmetric": {"color": "#0072B2", "marker": "o", "linewidth": 2.4},
    "farandole_ordinary": {"color": "#56B4E9", "marker": "s", "linestyle": "--"},
    "farandole_torch": {"color": "#009E73", "marker": "D"},
    "openmpi": {"color": "#E69F00", "marker": "v"},
    "gloo_torch": {"color": "#D55E00", "marker": "^"},
}
TIMES = {1: "1 µs", 10: "10 µs", 100: "100 µs", 1e3: "1 ms", 1e4: "10 ms", 1e5: "100 ms"}
CLOSEST_LABELS = 3.4  # ratio of two times below which their labels would touch


def draw(rows: list[Row], folder: Path) -> None:
    """One panel a rank count, on common axes."""
    results = Results(rows)
    mpl.rcParams.update({"font.size": 10, "svg.fonttype": "path", "svg.hashsalt": "farandole"})
    figure, panels = pyplot.subplots(
        1, len(results.ranks), figsize=(6 * len(results.ranks), 5), sharey=True, squeeze=False
    )
    for axes, ranks in zip(panels[0], results.ranks, strict=True):
        draw_panel(axes, results, ranks)
    panels[0][0].set_ylabel("median time (lower is better)")
    row = results.rows[0]
    figure.suptitle(
        f"all_reduce of float32 on {row['cores']} cores ({row['cpu']}, torch {row['torch']})"
    )
    figure.tight_layout()
    figure.savefig(folder / "all_reduce.svg", metadata={"Date": None})
    figure.savefig(folder / "all_reduce.png", dpi=110)
    pyplot.close(figure)


def draw_panel(axes: Axes, results: Results, ranks: int) -> None:
    """Time against bytes, both in powers; each line is named at its right end."""
    sizes = results.sizes(ranks)
    ends = {}
    for lane in LANES:
        times = [results.median(lane.name, ranks, size) for size in sizes]
        if None not in times:
            axes.plot(sizes, times, markersize=4.5, **STYLES[lane.name])
            ends[lane] = times[-1]
    axes.set(xscale="log", yscale="log", title=f"{ranks} ranks", xlabel="bytes of the tensor")
    axes.xaxis.set_major_locator(FixedLocator(sizes[::2]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: size_text(int(size))))
    axes.xaxis.set_minor_locator(FixedLocator([]))
    axes.yaxis.set_major_locator(FixedLocator(list(TIMES)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda time, _: TIMES.get(time, "")))
    axes.set_xlim(sizes[0] / 2, sizes[-1] * 2)
    axes.tick_params(labelrotation=0, labelsize=8)
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    lanes = sorted(ends, key=lambda lane: ends[lane])
    for lane, place in zip(lanes, spread([ends[lane] for lane in lanes]), strict=True):
        axes.annotate(
            lane.label.replace(" through ", "\nthrough ").replace(", ", ",\n"),
            (sizes[-1] * 2.4, place),
            color=STYLES[lane.name]["color"],
            fontsize=8,
            linespacing=0.95,
            va="center",
            annotation_clip=False,
        )


def spread(times: list[float]) -> list[float]:
    """Where labels of ascending `times` go, so that none covers another."""
    places: list[float] = []
    for time in times:
        places.append(max(time, places[-1] * CLOSEST_LABELS) if places else time)
    logs = [math.log(place / time) for place, time in zip(places, times, strict=True)]
    return [place / math.exp(statistics.fmean(logs)) for place in places]


if __name__ == "__main__":
    results_folder = Path(sys.argv[1])
    lines = (results_folder / "collectives.jsonl").read_text().splitlines()
    draw([json.loads(line) for line in lines], results_folder)
