# SPDX-License-Identifier: Apache-2.0
"""What ends a pass of the training function when ranks come or go in order."""

from __future__ import annotations

import enum

from farandole.errors import Error


class HostUpdateResult(enum.IntFlag):
    """What has changed among the places for ranks."""

    no_update = 0
    removed = 1
    added = 2
    mixed = 3


class HostsUpdatedInterrupt(Error):
    """Ranks may come or will go: run() forms a new group, and nobody goes back to a commit."""

    def __init__(self, skip_sync: bool = False) -> None:
        """Take whether all ranks that stay have the same state, as when ranks only go."""
        super().__init__("the hosts of this job have changed")
        self.skip_sync = skip_sync
