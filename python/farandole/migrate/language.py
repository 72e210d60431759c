# SPDX-License-Identifier: Apache-2.0
"""What scripts are written in."""

from __future__ import annotations

from enum import Enum
from pathlib import PurePath


class Language(Enum):
    """What a text is written in."""

    PYTHON = "python"
    SHELL = "shell"


_SUFFIXES = {
    ".py": Language.PYTHON,
    ".pyw": Language.PYTHON,
    **dict.fromkeys((".sh", ".bash", ".slurm", ".sbatch"), Language.SHELL),
}


def language_of_name(name: str) -> Language | None:
    """By the end of a file's name; None if that tells nothing."""
    return _SUFFIXES.get(PurePath(name).suffix)
