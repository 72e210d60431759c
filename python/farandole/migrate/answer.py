# SPDX-License-Identifier: Apache-2.0
"""What a script gets for one of its uses."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from farandole.errors import Error


class Verdict(Enum):
    """From the best to the worst."""

    WORKS = "works"
    DIFFERS = "differs"
    UNKNOWN = "unknown"
    REFUSED = "refused"


@dataclass(frozen=True)
class Answer:
    """A verdict, and what belongs to it: pairs of a label and a text."""

    verdict: Verdict
    notes: tuple[tuple[str, str], ...] = ()

    @property
    def is_good(self) -> bool:
        """Whether the script runs on."""
        return self.verdict in (Verdict.WORKS, Verdict.DIFFERS)


def refusal(error: Error) -> Answer:
    """What the error says of why, and of what to do."""
    reasons = str(error).rpartition(" [")[0].partition("\nwhy: ")[2]
    why, _, fix = reasons.partition("\nfix: ")
    return Answer(Verdict.REFUSED, (("why", why), ("fix", fix)))
