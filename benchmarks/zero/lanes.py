# SPDX-License-Identifier: Apache-2.0
"""The lanes: ways to train with AdamW, and what each has to cost. Needs no torch."""

from dataclasses import dataclass, replace

PARAMETER_BYTES = GRADIENT_BYTES = 4  # of an element
STATE_BYTES = 8  # AdamW's two moments
KERNEL_ARRAYS = 7  # of float32: AdamW reads four, and writes all of them but the gradient


@dataclass(frozen=True)
class Lane:
    """One way, and its formulas; trainers.py makes it."""

    name: str  # in the results
    label: str  # in tables
    shards_state: bool = False
    crossings: int = 0  # how often all elements cross: 2 an all_reduce, 1 a gather or scatter
    baseline: str = "local"  # the lane that its times are compared with

    def state_bytes(self, parameters: int, ranks: int) -> float:
        """Of a rank."""
        return STATE_BYTES * parameters / (ranks if self.shards_state else 1)

    def steady_bytes(self, parameters: int, ranks: int) -> float:
        """Of a rank, between step() and zero_grad()."""
        own = (PARAMETER_BYTES + GRADIENT_BYTES) * parameters
        return own + self.state_bytes(parameters, ranks)

    def moved_bytes(self, parameters: int, ranks: int) -> float:
        """That a rank gets from others in a step; it gives them as many."""
        return self.crossings * PARAMETER_BYTES * parameters * (ranks - 1) / ranks


LANES = {
    each.name: each
    for each in (
        Lane("local", "no communication, AdamW"),
        Lane("torch_zero", "torch's DDP and ZeRO over gloo", True, 3),
        Lane("ours_full", "Farandole's DDP and ZeRO, full", True, 3),
        Lane("ours_shard", "Farandole's DDP and ZeRO, shard", True, 2),
        Lane("torch_ddp", "torch's DDP over gloo, AdamW", False, 2),
        Lane("ours_ddp", "Farandole's DDP, AdamW", False, 2),
    )
}
SCALERS = {"scaler": "GradScaler", "torch_scaler": "torch's GradScaler"}  # as tables have them


def lane_of(name: str) -> Lane:
    """`name` is one in LANES; with "+" and one in SCALERS the same lane with a scaled loss."""
    unscaled, _, scaler = name.partition("+")
    lane = LANES[unscaled]
    if not scaler:
        return lane
    return replace(lane, name=name, label=f"{lane.label}, {SCALERS[scaler]}", baseline=unscaled)
