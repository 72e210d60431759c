# SPDX-License-Identifier: Apache-2.0
"""How ranks lie on hosts."""

from __future__ import annotations

from dataclasses import dataclass

from farandole.errors import InvalidArgument, sentences


@dataclass(frozen=True)
class Layout:
    """As many ranks on each host."""

    hosts: int
    ranks_per_host: int

    @property
    def ranks(self) -> int:
        """Of all hosts."""
        return self.hosts * self.ranks_per_host


def layout_of(ranks: int, ranks_per_host: int) -> Layout:
    """Fills one host after the other; a single host may have fewer ranks.

    Raises:
        InvalidArgument: the last of several hosts would have fewer ranks than the others.
    """
    if ranks <= ranks_per_host:
        return Layout(1, ranks)
    if ranks % ranks_per_host:
        raise InvalidArgument(
            sentences(
                "predict-ranks",
                f"{ranks} ranks were to be predicted with {ranks_per_host} on each host.",
                "the prediction needs hosts with equal numbers of ranks.",
                "pass a multiple with --ranks, or another --ranks-per-host.",
            )
        )
    return Layout(ranks // ranks_per_host, ranks_per_host)
