# SPDX-License-Identifier: Apache-2.0
"""What an elastic job is asked for."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from farandole.errors import InvalidArgument, sentences

_LONGEST_COOLDOWN_S = 3600.0


@dataclass(frozen=True)
class ElasticSettings:
    """One job. Immutable."""

    command: list[str]
    """Of each rank."""
    ranks: int
    """Places for so many ranks must be there before it starts."""
    min_ranks: int
    """With fewer it ends, or waits for hosts that may still come."""
    max_ranks: int
    """It never has more."""
    hosts: Mapping[str, int] = field(default_factory=dict)
    """Places for ranks on each host; empty: ``discovery_script`` prints them."""
    discovery_script: str | None = None
    """A shell command that prints "host:slots" lines. It is called every second."""
    slots_per_host: int | None = None
    """Places of hosts that it prints without a number."""
    elastic_timeout_s: float = 600.0
    """How long to wait for places for ``min_ranks``, and for ranks that do not meet the others."""
    reset_limit: int | None = None
    """How often ranks may meet again."""
    cooldown_s: tuple[float, float] | None = None
    """After how many seconds a place whose rank failed is used again: at first, and at most after
    failures that repeat; None: never."""
    ssh_port: int | None = None
    ssh_identity_file: str | None = None
    prefix: bool = True
    output_folder: Path | None = None
    quiet: bool = False
    variables: Mapping[str, str] = field(default_factory=dict)
    """For the ranks, beside those of this process."""

    def __post_init__(self) -> None:
        """Check what can be checked before anything starts.

        Raises:
            InvalidArgument: a value is wrong.
        """
        if not 1 <= self.min_ranks <= self.ranks <= self.max_ranks:
            raise _wrong(
                f"{self.min_ranks} to {self.max_ranks} ranks, {self.ranks} at first",
                "the smallest number is at least 1, and that of the start lies between both.",
                "pass numbers that fit, as in -n 4 --min-ranks 2 --max-ranks 8.",
            )
        if bool(self.hosts) == (self.discovery_script is not None):
            raise _wrong(
                "hosts and a host discovery script" if self.hosts else "no hosts",
                "hosts are named at the start, or found by a script while the job runs.",
                "pass one of them.",
            )
        if self.elastic_timeout_s <= 0 or (self.reset_limit is not None and self.reset_limit < 0):
            raise _wrong(
                f"a timeout of {self.elastic_timeout_s} s and a reset limit of {self.reset_limit}",
                "the timeout is above 0, and the limit not negative.",
                "pass such numbers.",
            )
        if self.cooldown_s is not None:
            least, most = self.cooldown_s
            if not 1 <= least <= most <= _LONGEST_COOLDOWN_S:
                raise _wrong(
                    f"a cooldown of {least:g} to {most:g} s",
                    f"both are from 1 to {_LONGEST_COOLDOWN_S:g} s, the smaller one first.",
                    "pass such a range, as in 10 100.",
                )


def _wrong(what: str, why: str, fix: str) -> InvalidArgument:
    return InvalidArgument(sentences("elastic-settings", f"an elastic job got {what}.", why, fix))
