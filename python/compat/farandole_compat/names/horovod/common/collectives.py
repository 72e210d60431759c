# SPDX-License-Identifier: Apache-2.0
"""Collectives that are matched by name, with Horovod's errors."""

from __future__ import annotations

from farandole.named import NamedCollectives
from farandole.named.handle import Handle
from farandole.named.request import Request
from torch import Tensor

from horovod.common.exceptions import as_horovod


class Collectives(NamedCollectives):
    """Those of farandole.named; also optimizers that have it raise HorovodInternalErrors."""

    def submit(self, name: str, request: Request, will_wait: bool = False) -> Handle:
        """As NamedCollectives'."""
        with as_horovod():
            return super().submit(name, request, will_wait)

    def wait(self, handle: Handle) -> list[Tensor]:
        """As NamedCollectives'."""
        with as_horovod():
            return super().wait(handle)
