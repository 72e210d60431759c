# SPDX-License-Identifier: Apache-2.0
"""Collectives that are matched by name, and what is built on them.

What Horovod's interface (farandole-compat) stands on; programs of their own need it where ranks
cannot start their collectives in one order.
"""

from farandole.named.handle import Handle
from farandole.named.named_collectives import NamedCollectives
from farandole.named.request import Request
from farandole.named.settings import Settings

__all__ = ["Handle", "NamedCollectives", "Request", "Settings"]
