# SPDX-License-Identifier: Apache-2.0
"""Draws ddp_buckets.svg and .png from the rows of a sweep: python sweep_plot.py RESULTS_FOLDER."""

import json
import sys
from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.ticker import FixedLocator, FuncFormatter

Row = dict[str, Any]
TITLES = {"transformer": "transformer", "resnet50": "ResNet-50"}
OURS, PEER = "#0072B2", "#D55E00"  # Okabe and Ito's, as in all_reduce.svg


def draw(rows: list[Row], folder: Path) -> None:
    """One panel a model: how many times a step without DDP takes, against the bucket's size."""
    mpl.rcParams.update({"font.size": 10, "svg.fonttype": "path", "svg.hashsalt": "farandole"})
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, panels = pyplot.subplots(1, len(tasks), figsize=(5.5 * len(tasks), 4), squeeze=False)
    for axes, task in zip(panels[0], tasks, strict=True):
        draw_panel(axes, [row for row in rows if row["task"] == task and "ratio" in row])
        axes.set_title(f"{TITLES[task]}, {rows[0]['ranks']} ranks")
    panels[0][0].set_ylabel("forward + backward, x without DDP\n(lower is better)")
    row = rows[0]
    figure.suptitle(f"{row['cores']} cores ({row['cpu']}, torch {row['torch']})", fontsize=10)
    figure.tight_layout()
    figure.savefig(folder / "ddp_buckets.svg", metadata={"Date": None})
    figure.savefig(folder / "ddp_buckets.png", dpi=110)
    pyplot.close(figure)


def draw_panel(axes: Axes, rows: list[Row]) -> None:
    """Ours with quartiles; torch's over gloo, which has buckets of 25 MiB, as a line across."""
    swept = {float(row["lane"].split("@")[1]): row for row in rows if "@" in row["lane"]}
    sizes = sorted(swept)
    ratios = [swept[size]["ratio"] for size in sizes]
    quartiles = [swept[size]["ratio_quartiles"] for size in sizes]
    below = [max(0.0, ratio - low) for ratio, (low, _) in zip(ratios, quartiles, strict=True)]
    above = [max(0.0, high - ratio) for ratio, (_, high) in zip(ratios, quartiles, strict=True)]
    axes.errorbar(
        sizes, ratios, yerr=[below, above], color=OURS, marker="o", capsize=3, label="Farandole"
    )
    for row in rows:
        if row["lane"] == "torch_gloo_view":
            axes.axhline(row["ratio"], color=PEER, linestyle="--", label="torch over gloo")
    axes.axhline(1, color="#777777", linewidth=0.8, label="without DDP")
    axes.set(xscale="log", xlabel="MiB of a bucket")
    axes.xaxis.set_major_locator(FixedLocator(sizes))
    axes.xaxis.set_minor_locator(FixedLocator([]))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)
    axes.legend(frameon=False, fontsize=9, loc="upper right", bbox_to_anchor=(1, 0.94))


if __name__ == "__main__":
    results = Path(sys.argv[1])
    lines = (results / "ddp.jsonl").read_text().splitlines()
    draw([row for row in map(json.loads, lines) if row["part"] == "sweep"], results)
