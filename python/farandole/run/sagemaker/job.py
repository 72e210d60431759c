# SPDX-License-Identifier: Apache-2.0
"""What a job of SageMaker asks for."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path


@dataclass
class SageMakerJob:
    """What the file and the environment ask for."""

    program: str | None = None
    arguments: list[str] = field(default_factory=list)
    """Of the program, made of hyperparameters."""
    folder: Path | None = None
    """The code folder, in which the ranks run; None: where the command was called."""
    ranks_per_host: int | None = None
    """None: one for each core."""
    hosts: list[str] = field(default_factory=list)
    """All of them, if there are several."""
    current_host: str | None = None
    """This one, where each host runs the command; None: it runs once, and uses mpirun."""
    mpi_options: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    """For the ranks."""
    channels: list[str] = field(default_factory=list)
    """Names of inputs."""
    output_folder: Path = Path()
    """For models and output that have no folder of their own; it need not exist."""
    unused: list[str] = field(default_factory=list)
    """What has no effect, to be named."""
