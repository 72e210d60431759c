# SPDX-License-Identifier: Apache-2.0
"""How tensors travel."""

from __future__ import annotations

from farandole.named.compression import BrainCompression, HalfCompression, NoCompression


class Compression:
    """Horovod's none and fp16, and Farandole's bf16."""

    none = NoCompression
    fp16 = HalfCompression
    bf16 = BrainCompression
