# SPDX-License-Identifier: Apache-2.0
"""Draws the curves of a training from its log, in Python or C++.

python examples/python/plot_training.py build/resnet curve.png
"""

from __future__ import annotations

import argparse
import csv
import re
import sys
from pathlib import Path

import matplotlib as mpl
import matplotlib.pyplot as plt

LOSSES = ["loss", "test_loss"]
ACCURACIES = ["top1", "top5", "accuracy", "mean_iou"]
NAMES = {
    "loss": "loss, training",
    "test_loss": "loss, test",
    "top1": "top-1 accuracy, test",
    "top5": "top-5 accuracy, test",
    "accuracy": "pixel accuracy, test",
    "mean_iou": "mean IoU, test",
}


def read_rows(path: Path) -> list[dict[str, str]]:
    """Of log.csv in a folder, or of what a program has printed."""
    if path.is_dir():
        with (path / "log.csv").open(newline="") as file:
            return list(csv.DictReader(file))
    found = re.findall(r"step (\d+): loss ([\d.]+)", path.read_text())
    return [{"step": step, "loss": loss} for step, loss in found]


def draw(rows: list[dict[str, str]], path: Path) -> None:
    """Losses on the left, accuracies on the right, by step."""
    mpl.rcParams["svg.hashsalt"] = "farandole"
    shown = [
        names
        for names in (LOSSES, ACCURACIES)
        if any(row.get(name) for row in rows for name in names)
    ]
    if not shown:
        sys.exit("There are no losses to draw yet.")
    size = (4 * len(shown), 3)
    figure, panels = plt.subplots(1, len(shown), figsize=size, layout="constrained", squeeze=False)
    for panel, names in zip(panels[0], shown, strict=True):
        for name in names:
            points = [(int(row["step"]), float(row[name])) for row in rows if row.get(name)]
            if points:
                marker = "" if name == "loss" else "o"
                panel.plot(*zip(*points, strict=True), label=NAMES[name], marker=marker)
        panel.set_xlabel("step")
        panel.grid(alpha=0.3)
        panel.legend()
        panel.set_ylim(**({"bottom": 0} if names is LOSSES else {"top": 1}))
    figure.savefig(path, dpi=100)


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("log", type=Path, help="folder that has log.csv, or a file of lines")
    parser.add_argument("picture", type=Path, help="PNG or SVG file to write")
    arguments = parser.parse_args()
    try:
        rows = read_rows(arguments.log)
    except FileNotFoundError as error:
        parser.error(
            f"{error.filename} does not exist; train_resnet.py and other examples write it"
        )
    draw(rows, arguments.picture)


if __name__ == "__main__":
    main()
