# SPDX-License-Identifier: Apache-2.0
"""Which gradients travel together, by the rules of src/ddp/bucket_plan.cpp."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from farandole.bench.predict.recorded_step import Gradient

MIB = 1 << 20
DTYPE_BYTES = {"float64": 8, "float32": 4, "float16": 2, "bfloat16": 2}


@dataclass(frozen=True)
class Caps:
    """Bytes of buckets; see BucketCaps in bucket_plan.h."""

    first_bytes: float
    bytes: float
    last_bytes: float = 0


@dataclass(frozen=True)
class Bucket:
    """Gradients of one dtype."""

    bytes: float
    """On the wire."""
    ready_ms: float
    """When the last of them is ready."""


def default_caps(*, shared: bool) -> Caps:
    """Those of DistributedDataParallel without bucket_cap_mb. ``shared``: ranks share memory."""
    cap = (1 if shared else 25) * MIB
    return Caps(cap / 4 if shared else MIB, cap, cap / 4 if shared else cap / 25)


def caps_of(bucket_cap_mb: float, *, shared: bool) -> Caps:
    """Those of DistributedDataParallel with this bucket_cap_mb."""
    cap = bucket_cap_mb * MIB
    return Caps(min(cap, (0.25 if shared else 1) * MIB), cap)


def buckets_of(
    gradients: Sequence[Gradient], caps: Caps, wire_dtype: str | None = None
) -> list[Bucket]:
    """In launch order. ``wire_dtype``: in which float32 and float64 travel; None: as they are."""
    found: list[Bucket] = []
    for dtype in dict.fromkeys(gradient.dtype for gradient in gradients):
        own = [gradient for gradient in gradients if gradient.dtype == dtype]
        ratio = wire_ratio(dtype, wire_dtype)
        found += [
            Bucket(ratio * sum(each.bytes for each in bucket), bucket[-1].ready_ms)
            for bucket in _packed(own, caps)
        ]
    return sorted(found, key=lambda bucket: bucket.ready_ms)


def wire_ratio(dtype: str, wire_dtype: str | None) -> float:
    """Bytes on the wire for a byte of gradients."""
    if wire_dtype is None or dtype not in ("float32", "float64"):
        return 1.0
    return DTYPE_BYTES[wire_dtype] / DTYPE_BYTES[dtype]


def _packed(gradients: Sequence[Gradient], caps: Caps) -> list[list[Gradient]]:
    """Gradients of one dtype: the one that reaches the cap closes the bucket."""
    tail = _tail_begin(gradients, caps.last_bytes)
    buckets: list[list[Gradient]] = []
    is_open = False
    for place, gradient in enumerate(gradients):
        if place == tail or not is_open:
            buckets.append([])
        buckets[-1].append(gradient)
        cap = caps.first_bytes if len(buckets) == 1 else caps.bytes
        is_open = place >= tail or sum(each.bytes for each in buckets[-1]) < cap
    return buckets


def _tail_begin(gradients: Sequence[Gradient], last_bytes: float) -> int:
    """Where the last bucket begins, which has one gradient at least; the end: there is none."""
    if last_bytes == 0:
        return len(gradients)
    begin, total = len(gradients) - 1, gradients[-1].bytes
    while begin > 0 and total + gradients[begin - 1].bytes <= last_bytes:
        begin -= 1
        total += gradients[begin].bytes
    return begin
