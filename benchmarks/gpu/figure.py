# SPDX-License-Identifier: Apache-2.0
"""One comparison of what was measured on GPUs; needs no installed Farandole."""

from dataclasses import asdict, dataclass

from benchmarks.harness.results import Row
from benchmarks.harness.tables import time_text

HEADS = ["", "Farandole", "peer", "with", "ratio", "middle half", "target"]


@dataclass(frozen=True)
class Figure:
    """One comparison. Times are medians in microseconds; `ratio` is ours over the peer's."""

    name: str
    ours_us: float | None  # None: refused; `state` says why
    peer_us: float
    peer: str
    ratio: float | None = None
    quartiles: tuple[float, float] | None = None
    target: float | None = None  # the most that `ratio` may be
    state: str = ""  # what became of the target

    def line(self) -> list[str]:
        """Of a table."""
        times = [time_text(each) for each in (self.ours_us, self.peer_us)]
        ratio = "-" if self.ratio is None else f"{self.ratio:.3f}x"
        middle = "" if self.quartiles is None else "{:.3f}x to {:.3f}x".format(*self.quartiles)
        target = "" if self.target is None else f"<= {self.target:g}x, "
        return [self.name, *times, self.peer, ratio, middle, f"{target}{self.state}".strip(", ")]

    def row(self) -> Row:
        """For a report."""
        return asdict(self)
