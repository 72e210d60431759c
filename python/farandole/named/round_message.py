# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other in a round, as bytes: known names as a set of bits, others in full."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field

from farandole.named.request import Signature

_HEADER = struct.Struct("<BI")  # flags, and how many bytes the bits take


@dataclass
class RoundMessage:
    """One rank's part of a round."""

    joined: bool = False
    gives_up: bool = False
    """Whether it has waited for as long as is allowed."""
    known: int = 0
    """Bit k: the name of number k, with the signature that this rank had last time."""
    fresh: list[tuple[str, Signature]] = field(default_factory=list)
    """Names that are new, or have another signature."""
    times_us: list[int] = field(default_factory=list)
    """When the program asked, since the end of the round before, which all ranks leave together:
    for known names in the order of their numbers, then for fresh ones. Empty without a timeline."""

    def encode(self) -> bytes:
        """As it travels."""
        bits = self.known.to_bytes((self.known.bit_length() + 7) // 8, "little")
        flags = self.joined | self.gives_up << 1 | bool(self.times_us) << 2
        told = [self.fresh, self.times_us] if self.times_us else self.fresh
        text = json.dumps(told, separators=(",", ":")).encode() if told else b""
        return b"".join((_HEADER.pack(flags, len(bits)), bits, text))

    @classmethod
    def decode(cls, data: bytes) -> RoundMessage:
        """What encode() wrote."""
        flags, bits = _HEADER.unpack_from(data)
        end = _HEADER.size + bits
        known = int.from_bytes(data[_HEADER.size : end], "little")
        told = json.loads(data[end:]) if len(data) > end else []
        named, times_us = told if flags & 4 else (told, [])
        fresh = [(name, Signature.of_json(fields)) for name, fields in named]
        return cls(bool(flags & 1), bool(flags & 2), known, fresh, times_us)
