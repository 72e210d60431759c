# SPDX-License-Identifier: Apache-2.0
"""What ranks tell each other in a round, as bytes: known names as a set of bits, others in full."""

from __future__ import annotations

import json
import struct
from dataclasses import dataclass, field

from farandole.named.request import Signature

_HEADER = struct.Struct("<BI")  # whether the rank has joined, and how many bytes the bits take


@dataclass
class RoundMessage:
    """One rank's part of a round."""

    joined: bool = False
    known: int = 0
    """Bit k: the name of number k, with the signature that this rank had last time."""
    fresh: list[tuple[str, Signature]] = field(default_factory=list)
    """Names that are new, or have another signature."""

    def encode(self) -> bytes:
        """As it travels."""
        bits = self.known.to_bytes((self.known.bit_length() + 7) // 8, "little")
        text = json.dumps(self.fresh, separators=(",", ":")).encode() if self.fresh else b""
        return b"".join((_HEADER.pack(self.joined, len(bits)), bits, text))

    @classmethod
    def decode(cls, data: bytes) -> RoundMessage:
        """What encode() wrote."""
        joined, bits = _HEADER.unpack_from(data)
        end = _HEADER.size + bits
        known = int.from_bytes(data[_HEADER.size : end], "little")
        fresh = [
            (name, Signature.of_json(fields))
            for name, fields in (json.loads(data[end:]) if len(data) > end else [])
        ]
        return cls(bool(joined), known, fresh)
