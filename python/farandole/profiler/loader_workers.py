# SPDX-License-Identifier: Apache-2.0
"""How many workers a DataLoader has, for the recorder."""

from __future__ import annotations

from torch.utils.data import dataloader

from farandole import _C


def watch() -> None:
    """Record that number with each wait for a batch; nothing, if this torch has other iterators.

    torch's range of such a wait has no arguments. So the recorder looks from the range at the
    iterator whose ``__next__`` has begun it: no class of torch is changed.
    """
    iterator = getattr(dataloader, "_BaseDataLoaderIter", None)
    code = getattr(getattr(iterator, "__next__", None), "__code__", None)
    if code is not None:
        _C.watch_data_loaders(code)
