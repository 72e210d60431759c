# SPDX-License-Identifier: Apache-2.0
"""AdamW's step of the sharded optimizer beside torch's fused one and a copy of as many bytes.

Each rank has an optimizer of its own, in a group of one: nothing is sent.
"""

from collections.abc import Callable

import farandole
import torch
from torch import Tensor
from torch.optim import AdamW

from benchmarks.gpu.session import Session, median_row, ratio_row
from benchmarks.gpu.steps import SETTINGS
from benchmarks.harness.results import Row

ELEMENTS = {"full": 64 * 1024**2, "quick": 64 * 1024}
ITERATIONS = {"full": 10, "quick": 1}
ARRAYS = 7  # parameter, gradient and two moments are read, all but the gradient written
OF_VALUE = 1e-5  # error allowed


def measure(session: Session) -> list[Row]:
    """One row a lane; raises RuntimeError if ours and torch's parameters differ."""
    count = ELEMENTS[session.size]
    ours, theirs = (parameter(count, session.device) for _ in range(2))
    source, target = (torch.ones(ARRAYS * count // 2, device=session.device) for _ in range(2))
    bodies: dict[str, Callable[[], object]] = {
        "torch": AdamW([theirs], fused=True, **SETTINGS).step,
        "copy": lambda: target.copy_(source),
    }
    rows: list[Row] = []
    try:
        bodies = {"farandole": sharded_step(session, ours), **bodies}
    except farandole.NotSupported as refusal:
        cannot = str(refusal).splitlines()[0]
        rows.append({"part": "adamw", "lane": "farandole", "cannot": cannot})
    for body in bodies.values():
        body()
    times = session.device_ms(bodies, ITERATIONS[session.size])
    if "farandole" in bodies:
        close = torch.isclose(ours, theirs, rtol=OF_VALUE, atol=OF_VALUE)
        session.check(close.numel() - int(close.sum()), "AdamW")
    for lane, own in times.items():
        row: Row = {"part": "adamw", "lane": lane, "elements": count, **median_row(own, "ms")}
        row["gb_s"] = round(ARRAYS * 4 * count / row["median_ms"] / 1e6, 3)
        row["verified"] = "farandole" in bodies
        if lane != "copy":
            row["of_copy"] = round(1 / ratio_row(own, times["copy"], "ratio")["ratio"], 4)
        if lane == "farandole":
            row |= ratio_row(own, times["torch"], "of_peer")
        rows.append(row)
    speeds = ", ".join(f"{row['lane']} {row['gb_s']:.0f} GB/s" for row in rows if "gb_s" in row)
    session.say(f"AdamW of {count} elements: {speeds}")
    return [{**row, **session.fields()} for row in rows]


def parameter(count: int, device: torch.device) -> Tensor:
    """With a gradient."""
    generator = torch.Generator().manual_seed(0)
    made = torch.nn.Parameter(torch.randn(count, generator=generator).to(device))
    made.grad = torch.randn(count, generator=generator).to(device)
    return made


def sharded_step(session: Session, of: Tensor) -> Callable[[], object]:
    """Of ours."""
    groups = [farandole.new_group([rank]) for rank in range(session.ranks)]
    optimizer = farandole.ZeroRedundancyOptimizer(
        [of], AdamW, process_group=groups[session.rank], gradients="full", **SETTINGS
    )
    return optimizer.step
