# SPDX-License-Identifier: Apache-2.0
"""Warns of names that some ranks wait for and others do not ask for."""

from __future__ import annotations

import logging
import time

from farandole.errors import TimeoutError, sentences
from farandole.named.agreement import Agreement
from farandole.named.settings import Settings

_logger = logging.getLogger(__name__)


class StallWatch:
    """Looks at the tables after each round, and at a round that does not end.

    Threads: one at a time for look(), any for look_at_round().
    """

    def __init__(self, agreement: Agreement, rank: int, settings: Settings) -> None:
        self._agreement = agreement
        self._rank = rank
        self._settings = settings
        self._next_warning = 0.0

    def gives_up(self) -> bool:
        """Whether something has waited for as long as is allowed."""
        limit = self._settings.stall_shutdown_s
        return limit > 0 and bool(self._agreement.stalled(limit))

    def error(self) -> TimeoutError:
        """The error of all ranks when one gives up."""
        stalled = self._agreement.stalled(0)
        error = TimeoutError(
            sentences(
                "named-stalled",
                f"operations have waited for more than {self._settings.stall_shutdown_s:g} s: "
                f"{_listed(stalled)}.",
                "the ranks in brackets have not asked for them, and the setting for stalls ends "
                "the training then.",
                "let all ranks call the same operations, or raise "
                "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS.",
            )
        )
        error.ranks = tuple(sorted({rank for missing in stalled.values() for rank in missing}))
        return error

    def look(self) -> None:
        """Log one warning on rank 0 for all that waits too long."""
        limit = self._settings.stall_warning_s
        now = time.monotonic()
        if not limit or self._rank != 0 or now < self._next_warning:
            return
        stalled = self._agreement.stalled(limit)
        if stalled:
            self._next_warning = now + limit
            _logger.warning(
                "some ranks have waited for more than %g s for operations that others have not "
                "asked for: %s. Ranks that call different operations wait for ever.",
                limit,
                _listed(stalled),
            )

    def look_at_round(self, began: float) -> None:
        """Log a warning of a round that began then and in which a rank does not take part."""
        limit = self._settings.stall_warning_s
        now = time.monotonic()
        if not limit or now < began + limit or now < self._next_warning:
            return
        self._next_warning = now + limit
        _logger.warning(
            "rank %d has waited for %.0f s for a rank that does not answer at all. Its threads do "
            "not run: it hangs in a call that holds Python's lock, or was stopped.",
            self._rank,
            now - began,
        )


def _listed(stalled: dict[str, list[int]]) -> str:
    shown = [f"'{name}' (ranks {missing})" for name, missing in list(stalled.items())[:8]]
    rest = len(stalled) - len(shown)
    return ", ".join(shown) + (f" and {rest} more" if rest else "")
