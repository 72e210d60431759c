# SPDX-License-Identifier: Apache-2.0
"""What each rank runs: a Python script, a Python module, or any other program."""

from __future__ import annotations

import difflib
import importlib.machinery
import os
import shutil
import sys
from pathlib import Path

from farandole.errors import InvalidArgument, sentences


def command_of(program: str, arguments: list[str], *, module: bool) -> list[str]:
    """The command line of each rank; scripts and modules run in this Python.

    Raises:
        InvalidArgument: the file does not exist or cannot be run.
    """
    if module:
        return [sys.executable, "-m", program, *arguments]
    if program.endswith(".py"):
        return [sys.executable, str(_existing(program)), *arguments]
    on_path = None if "/" in program else shutil.which(program)
    if on_path is not None:
        return [on_path, *arguments]
    path = _existing(program)
    if not os.access(path, os.X_OK):
        raise InvalidArgument(
            sentences(
                "program-not-executable",
                f"'{program}' cannot be run as a program.",
                "its name does not end in .py, and the file is not executable.",
                f"call chmod +x {program}, or put the program that runs it in front, as in: "
                f"farandole run python {program}",
            )
        )
    return [program if "/" in program else str(path.absolute()), *arguments]


def check_module(module: str) -> None:
    """Look in this folder and in the packages for the outermost package, without importing it.

    Raises:
        InvalidArgument: it is in neither.
    """
    name = module.partition(".")[0]
    folders = [str(Path.cwd()), *sys.path]  # as python -m looks for it
    if name in sys.builtin_module_names or importlib.machinery.PathFinder.find_spec(name, folders):
        return
    raise InvalidArgument(
        sentences(
            "module-missing",
            f"there is no Python module '{name}'.",
            f"neither {Path.cwd()} nor the packages of {sys.executable} contain it.",
            "call farandole run in the folder that contains the module, install the module, or set "
            "PYTHONPATH; to run a file, leave -m out.",
        )
    )


def _existing(program: str) -> Path:
    """The path of the file ``program``."""
    path = Path(program)
    if path.is_file():
        return path
    path_searched = "/" not in program and not program.endswith(".py")
    why = f"{path.absolute().parent} has no such file{' and PATH no such program' * path_searched}."
    if path.is_dir():
        why = "it is a folder."
    raise InvalidArgument(
        sentences(
            "program-missing",
            f"there is no program '{program}'.",
            why,
            f"pass the path of a script or program{_suggestion(path)}; options of farandole run "
            "come before it, and a Python module needs -m.",
        )
    )


def _suggestion(path: Path) -> str:
    """A file of a similar name in the same folder."""
    if not path.parent.is_dir():
        return ""
    names = [each.name for each in path.parent.iterdir() if each.is_file()]
    similar = difflib.get_close_matches(path.name, names, n=1)
    return f" ({path.parent / similar[0]}?)" if similar else ""
