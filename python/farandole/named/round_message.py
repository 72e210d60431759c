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

    def encode(self) -> bytes:
        """As it travels."""
        bits = self.known.to_bytes((self.known.bit_length() + 7) // 8, "little")
        text = json.dumps(self.fresh, separators=(",", ":")).encode() if self.fresh else b""
        return b"".join((_HEADER.pack(self.joined | self.gives_up << 1, len(bits)), bits, text))

    @classmethod
    def decode(cls, data: bytes) -> RoundMessage:
        """What encode() wrote."""
        flags, bits = _HEADER.unpack_from(data)
        end = _HEADER.size + bits
        known = int.from_bytes(data[_HEADER.size : end], "little")
        fresh = [
            (name, Signature.of_json(fields))
            for name, fields in (json.loads(data[end:]) if len(data) > end else [])
        ]
        return cls(bool(flags & 1), bool(flags & 2), known, fresh)
