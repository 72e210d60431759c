# SPDX-License-Identifier: Apache-2.0
"""Draws ddp_buckets.svg and .png: python -m benchmarks.ddp.sweep_plot RESULTS_FOLDER."""

import sys
from pathlib import Path

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter

from benchmarks.harness import figures
from benchmarks.harness.results import Row, rows_of

TITLES = {"transformer": "transformer", "resnet50": "ResNet-50"}


def draw(rows: list[Row], folder: Path) -> None:
    """One panel a model: how many times a step without DDP takes, against the bucket's size."""
    rows = [row for row in rows if row["part"] == "sweep"]
    tasks = list(dict.fromkeys(row["task"] for row in rows))
    figure, panels = figures.panels_of(len(tasks), 5.5, 4)
    for axes, task in zip(panels, tasks, strict=True):
        draw_panel(axes, [row for row in rows if row["task"] == task and "ratio" in row])
        axes.set_title(f"{TITLES[task]}, {rows[0]['ranks']} ranks")
    panels[0].set_ylabel("forward + backward, x without DDP\n(lower is better)")
    row = rows[0]
    figure.suptitle(f"{row['cores']} cores ({row['cpu']}, torch {row['torch']})", fontsize=10)
    figures.save(figure, folder, "ddp_buckets")


def draw_panel(axes: Axes, rows: list[Row]) -> None:
    """Ours with quartiles; torch's over gloo, which has buckets of 25 MiB, as a line across."""
    swept = {float(row["lane"].split("@")[1]): row for row in rows if "@" in row["lane"]}
    sizes = sorted(swept)
    ratios = [swept[size]["ratio"] for size in sizes]
    quartiles = [swept[size]["ratio_quartiles"] for size in sizes]
    below = [max(0.0, ratio - low) for ratio, (low, _) in zip(ratios, quartiles, strict=True)]
    above = [max(0.0, high - ratio) for ratio, (_, high) in zip(ratios, quartiles, strict=True)]
    axes.errorbar(
        sizes,
        ratios,
        yerr=[below, above],
        color=figures.BLUE,
        marker="o",
        capsize=3,
        label="Farandole",
    )
    for row in rows:
        if row["lane"] == "torch_gloo_view":
            axes.axhline(row["ratio"], color=figures.RED, linestyle="--", label="torch over gloo")
    axes.axhline(1, color="#777777", linewidth=0.8, label="without DDP")
    axes.set(xscale="log", xlabel="MiB of a bucket")
    figures.tidy(axes, sizes)
    axes.xaxis.set_major_formatter(FuncFormatter(lambda size, _: f"{size:g}"))
    axes.legend(frameon=False, fontsize=9, loc="upper right", bbox_to_anchor=(1, 0.94))


if __name__ == "__main__":
    results = Path(sys.argv[1])
    draw(rows_of(results / "ddp.jsonl"), results)
