# SPDX-License-Identifier: Apache-2.0
"""Figures that all look the same. Needs matplotlib."""

from pathlib import Path
from typing import Any

import matplotlib as mpl

mpl.use("Agg")

from matplotlib import pyplot
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FixedLocator

# Okabe and Ito's colours, which stay apart for colour-blind eyes.
BLUE, SKY, GREEN, ORANGE, RED = "#0072B2", "#56B4E9", "#009E73", "#E69F00", "#D55E00"


def panels_of(count: int, width: float, height: float, **options: Any) -> tuple[Figure, list[Axes]]:
    """A figure with panels side by side, `width` inches each."""
    mpl.rcParams.update({"font.size": 10, "svg.fonttype": "path", "svg.hashsalt": "farandole"})
    size = (width * count, height)
    figure, panels = pyplot.subplots(1, count, figsize=size, squeeze=False, **options)
    return figure, [*panels[0]]


def tidy(axes: Axes, ticks: list[float]) -> None:
    """Ticks of x at these values alone, a faint grid, no frame."""
    axes.xaxis.set_major_locator(FixedLocator(ticks))
    axes.xaxis.set_minor_locator(FixedLocator([]))
    axes.grid(color="#dddddd", linewidth=0.6)
    axes.spines[["top", "right"]].set_visible(False)


def save(figure: Figure, folder: Path, name: str) -> None:
    """As .svg and .png; the same rows give the same bytes."""
    figure.tight_layout()
    figure.savefig(folder / f"{name}.svg", metadata={"Date": None})
    figure.savefig(folder / f"{name}.png", dpi=110)
    pyplot.close(figure)
