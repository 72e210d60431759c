# SPDX-License-Identifier: Apache-2.0
"""Gives each rank the bytes of all ranks: one small all_gather, a second one for long texts."""

from __future__ import annotations

import struct

import torch
import torch.distributed as dist

from farandole import _C

# What fits is one collective of the path that ranks read directly (up to 16 KiB in shared memory).
BLOCK_BYTES = 512
_LENGTH = struct.Struct("<I")
_ROOM = BLOCK_BYTES - _LENGTH.size


class Exchange:
    """The bytes of all ranks of a group, which is used for nothing else.

    Threads: one at a time.
    """

    def __init__(self, group: dist.ProcessGroup) -> None:
        self._group = group
        self._own = bytearray(BLOCK_BYTES)
        self._all = bytearray(BLOCK_BYTES * group.size())
        self._own_tensor = torch.frombuffer(self._own, dtype=torch.uint8)
        self._all_tensor = torch.frombuffer(self._all, dtype=torch.uint8)

    def __call__(self, data: bytes) -> list[bytes]:
        """What each rank gave, in rank order. Collective."""
        head = data[:_ROOM]
        _LENGTH.pack_into(self._own, 0, len(data))
        self._own[_LENGTH.size : _LENGTH.size + len(head)] = head
        _C.all_gather(self._all_tensor, self._own_tensor, self._group, False)
        starts = range(0, len(self._all), BLOCK_BYTES)
        lengths = [_LENGTH.unpack_from(self._all, start)[0] for start in starts]
        heads = [
            bytes(self._all[start + _LENGTH.size : start + _LENGTH.size + min(length, _ROOM)])
            for start, length in zip(starts, lengths, strict=True)
        ]
        longest = max(lengths) - _ROOM
        return heads if longest <= 0 else self._add_tails(heads, lengths, data[_ROOM:], longest)

    def _add_tails(
        self, heads: list[bytes], lengths: list[int], tail: bytes, longest: int
    ) -> list[bytes]:
        own = torch.frombuffer(bytearray(tail.ljust(longest, b"\0")), dtype=torch.uint8)
        gathered = torch.empty(longest * len(heads), dtype=torch.uint8, device="cpu")
        _C.all_gather(gathered, own, self._group, False)
        tails = gathered.numpy().tobytes()
        return [
            head + tails[index * longest : index * longest + max(0, length - _ROOM)]
            for index, (head, length) in enumerate(zip(heads, lengths, strict=True))
        ]
