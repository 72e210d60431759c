# SPDX-License-Identifier: Apache-2.0
"""What the command line of `farandole run` asks for, checked."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from farandole.run.elastic.settings import ElasticSettings


@dataclass(frozen=True)
class Nodes:
    """This host's part in a job of several, on each of which `farandole run` is called."""

    count: int
    rank: int
    master_address: str
    master_port: int


@dataclass(frozen=True)
class Job:
    """One run. Immutable."""

    command: list[str]
    """Of each rank."""
    ranks: int
    """Under torchrun those of this host, under mpirun all."""
    ranks_by_default: bool
    """Whether there is one for each core because no number was given."""
    placed: dict[str, int]
    """How many ranks mpirun starts on each host; empty: torchrun starts them on this one."""
    nodes: Nodes | None
    max_restarts: int
    mpirun_arguments: list[str]
    bind: bool
    prefix: bool
    output_folder: Path | None
    quiet: bool
    """Whether lines that only inform are left out."""
    timestamps: bool = False
    """Whether lines begin with the time of day."""
    split_output: bool = False
    """Whether ranks have a file for each stream in the output folder."""
    variables: dict[str, str] = field(default_factory=dict)
    """For the ranks, beside those of this process."""
    folder: Path | None = None
    """In which the ranks run; None: in that of this process."""
    notes: list[str] = field(default_factory=list)
    """Lines that inform, to be printed first."""
    elastic: ElasticSettings | None = None
    """If ranks may be lost and may come; then it says all but what is printed."""

    @property
    def world_size(self) -> int:
        """Ranks on all hosts."""
        return self.ranks * (self.nodes.count if self.nodes else 1)


def wants_quiet(asked: bool) -> bool:
    """Whether the user asked for no lines that only inform, here or for the log."""
    return asked or os.environ.get("FARANDOLE_LOG", "").lower() in ("warning", "error")
