# SPDX-License-Identifier: Apache-2.0
"""What a hook becomes in a file: modules can be pickled whole, and forget who looks at them."""

from __future__ import annotations

from typing import Any


class Unhooked:
    """Has the methods that modules call, which do nothing."""

    def _begin_step(self, *_: Any) -> None:
        pass

    _after_loss = _after_forward = _after_module = _begin_step
