# SPDX-License-Identifier: Apache-2.0
"""From hvd.init() to hvd.shutdown(), in a rank of a test."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import horovod.torch as hvd
from farandole.named import gradient_units


@contextmanager
def horovod(
    process_sets: Sequence[hvd.ProcessSet] = (), bucket_bytes: int | None = None
) -> Iterator[None]:
    """With buckets of another size than by default, if it is given, for the rest of the rank."""
    if bucket_bytes is not None:
        gradient_units.BUCKET_BYTES = bucket_bytes
    hvd.init(process_sets=list(process_sets))
    try:
        yield
        hvd.barrier()
    finally:
        hvd.shutdown()
