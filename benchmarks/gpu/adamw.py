# SPDX-License-Identifier: Apache-2.0
"""AdamW's step of the sharded optimizer beside torch's fused one and a copy of as many bytes.

In float32, and in bfloat16 with float32 master weights, which torch's has not.

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
# Bytes of an element: parameter, gradient and two moments are read, all but the gradient written;
# with master weights these too.
BYTES = {torch.float32: 4 * 7, torch.bfloat16: 2 * 3 + 4 * 6}
OURS = {"farandole": torch.float32, "farandole_bfloat16": torch.bfloat16}
OF_VALUE = 1e-5  # error allowed


def measure(session: Session) -> list[Row]:
    """One row a lane; raises RuntimeError if ours and torch's parameters differ."""
    count = ELEMENTS[session.size]
    ours = {lane: parameter(count, session.device, dtype) for lane, dtype in OURS.items()}
    theirs = parameter(count, session.device, torch.float32)
    copied = BYTES[torch.float32] // 4 * count // 2  # read, and as many written
    source, target = (torch.ones(copied, device=session.device) for _ in range(2))
    bodies: dict[str, Callable[[], object]] = {
        "torch": AdamW([theirs], fused=True, **SETTINGS).step,
        "copy": lambda: target.copy_(source),
    }
    rows: list[Row] = []
    try:
        bodies |= {lane: sharded_step(session, each) for lane, each in ours.items()}
    except farandole.NotSupported as refusal:
        cannot = str(refusal).splitlines()[0]
        rows.append({"part": "adamw", "lane": "farandole", "cannot": cannot})
    for body in bodies.values():
        body()
    times = session.device_ms(bodies, ITERATIONS[session.size])
    if "farandole" in bodies:
        close = torch.isclose(ours["farandole"], theirs, rtol=OF_VALUE, atol=OF_VALUE)
        session.check(close.numel() - int(close.sum()), "AdamW")
    for lane, own in times.items():
        row: Row = {"part": "adamw", "lane": lane, "elements": count, **median_row(own, "ms")}
        bytes_of_step = BYTES[OURS.get(lane, torch.float32)]
        row["gb_s"] = round(bytes_of_step * count / row["median_ms"] / 1e6, 3)
        row["verified"] = "farandole" in bodies
        if lane != "copy":
            slower = ratio_row(own, times["copy"], "ratio")["ratio"]
            row["of_copy"] = round(bytes_of_step / BYTES[torch.float32] / slower, 4)
        if lane in OURS:
            row |= ratio_row(own, times["torch"], "of_peer")
        rows.append(row)
    speeds = ", ".join(f"{row['lane']} {row['gb_s']:.0f} GB/s" for row in rows if "gb_s" in row)
    session.say(f"AdamW of {count} elements: {speeds}")
    return [{**row, **session.fields()} for row in rows]


def parameter(count: int, device: torch.device, dtype: torch.dtype) -> Tensor:
    """With a gradient."""
    generator = torch.Generator().manual_seed(0)
    made = torch.nn.Parameter(torch.randn(count, generator=generator).to(device, dtype))
    made.grad = torch.randn(count, generator=generator).to(device, dtype)
    return made


def sharded_step(session: Session, of: Tensor) -> Callable[[], object]:
    """Of ours."""
    groups = [farandole.new_group([rank]) for rank in range(session.ranks)]
    optimizer = farandole.ZeroRedundancyOptimizer(
        [of], AdamW, process_group=groups[session.rank], gradients="full", **SETTINGS
    )
    return optimizer.step
