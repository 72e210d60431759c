# SPDX-License-Identifier: Apache-2.0
"""Draws all_reduce.svg and .png: python -m benchmarks.collectives.plot RESULTS_FOLDER."""

import math
import statistics
import sys
from pathlib import Path
from typing import Any

from farandole.bench.sizes import size_text
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter

from benchmarks.collectives.lanes import LANES
from benchmarks.collectives.measured import Results
from benchmarks.harness import figures
from benchmarks.harness.results import Row, rows_of

STYLES: dict[str, dict[str, Any]] = {  # lines differ in shape too
    "farandole_symmetric": {"color": figures.BLUE, "marker": "o", "linewidth": 2.4},
    "farandole_ordinary": {"color": figures.SKY, "marker": "s", "linestyle": "--"},
    "farandole_torch": {"color": figures.GREEN, "marker": "D"},
    "farandole_mpi": {"color": figures.ORANGE, "marker": "x", "linestyle": "--"},
    "openmpi": {"color": figures.ORANGE, "marker": "v"},
    "gloo_torch": {"color": figures.RED, "marker": "^"},
}
TIMES = {1: "1 µs", 10: "10 µs", 100: "100 µs", 1e3: "1 ms", 1e4: "10 ms", 1e5: "100 ms"}
CLOSEST_LABELS = 3.4  # ratio of two times below which their labels would touch


def draw(rows: list[Row], folder: Path) -> None:
    """One panel a rank count, on common axes."""
    results = Results(rows)
    figure, panels = figures.panels_of(len(results.ranks), 6, 5, sharey=True)
    for axes, ranks in zip(panels, results.ranks, strict=True):
        draw_panel(axes, results, ranks)
    panels[0].set_ylabel("median time (lower is better)")
    row = results.rows[0]
    figure.suptitle(
        f"all_reduce of float32 on {row['cores']} cores ({row['cpu']}, torch {row['torch']})"
    )
    figures.save(figure, folder, "all_reduce")


def draw_panel(axes: Axes, results: Results, ranks: int) -> None:
    """Time against bytes, both in powers; each line is named at its right end."""
    sizes = results.sizes(ranks)
    ends: dict[str, float] = {}
    for lane in LANES:
        medians = [results.median(lane, ranks, size) for size in sizes]
        times = [time for time in medians if time is not None]
        if len(times) == len(sizes):
            axes.plot(sizes, times, markersize=4.5, **STYLES[lane])
            ends[lane] = times[-1]
    axes.set(xscale="log", yscale="log", title=f"{ranks} ranks", xlabel="bytes of the tensor")
    figures.tidy(axes, [*sizes[::2]])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: size_text(int(size))))
    axes.yaxis.set_major_locator(FixedLocator(list(TIMES)))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda time, _: TIMES.get(time, "")))
    axes.set_xlim(sizes[0] / 2, sizes[-1] * 2)
    axes.tick_params(labelrotation=0, labelsize=8)
    lanes = sorted(ends, key=lambda lane: ends[lane])
    for lane, place in zip(lanes, spread([ends[lane] for lane in lanes]), strict=True):
        axes.annotate(
            LANES[lane].label.replace(" through ", "\nthrough ").replace(", ", ",\n"),
            (sizes[-1] * 2.4, place),
            color=STYLES[lane]["color"],
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
    draw(rows_of(results_folder / "collectives.jsonl"), results_folder)
