# SPDX-License-Identifier: Apache-2.0
"""The files to read: scripts of Python and of shells, and notebooks."""

from __future__ import annotations

import json
import re
import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

from farandole.errors import InvalidArgument, sentences

_SHELLS = (".sh", ".bash", ".slurm", ".sbatch")
_NO_PYTHON = re.compile(r"^(\s*)([%!?]|[\w, ]+=\s*[%!]\w|[\w.]+\?\s*$)")
"""Lines of notebooks, as ``%matplotlib inline``, ``!ls``, ``files = !ls``, ``?name``, ``name?``."""
_SKIPPED = frozenset(["site-packages", "node_modules", "__pycache__"])


class Language(Enum):
    """What a text is written in."""

    PYTHON = "python"
    SHELL = "shell"


@dataclass(frozen=True)
class Source:
    """A text; of a notebook, its code cells one after the other."""

    path: Path
    language: Language
    text: str
    problem: str = ""
    """Why it could not be read, if it lies in a folder; then there is no text."""


def sources(paths: Iterable[Path]) -> Iterator[Source]:
    """Each file that is named, and those of folders that are scripts or notebooks.

    Raises:
        InvalidArgument: a file that is named does not exist, or cannot be read.
    """
    for path in paths:
        if path.is_dir():
            yield from map(_read_if_possible, _scripts_below(path))
        else:
            yield _read(path)


def _read_if_possible(path: Path) -> Source:
    try:
        return _read(path)
    except InvalidArgument as error:
        return Source(path, Language.PYTHON, "", str(error.__cause__))


def _scripts_below(folder: Path) -> Iterator[Path]:
    """Not those of hidden folders, and not those of installed packages."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        is_skipped = any(part in _SKIPPED or part.startswith(".") for part in parts)
        if not is_skipped and path.is_file() and path.suffix in (".py", ".ipynb", *_SHELLS):
            yield path


def _read(path: Path) -> Source:
    try:
        if path.suffix == ".ipynb":
            return Source(path, Language.PYTHON, _code_of_notebook(path.read_text("utf-8")))
        with tokenize.open(path) as file:  # in the encoding that the file says
            text = file.read()
    except (OSError, ValueError, SyntaxError, KeyError, TypeError, AttributeError) as error:
        raise InvalidArgument(
            sentences(
                "migrate-file",
                f"'{path}' could not be read.",
                f"{error}.",
                "pass scripts of Python or of a shell, notebooks, or folders with such files.",
            )
        ) from error
    is_shell = path.suffix in _SHELLS or text.startswith(("#!/bin/sh", "#!/bin/bash"))
    return Source(path, Language.SHELL if is_shell else Language.PYTHON, text)


def _code_of_notebook(text: str) -> str:
    """Lines that are no Python, as those for a shell, become comments: ``pass  # !ls``."""
    cells = [cell for cell in json.loads(text)["cells"] if cell.get("cell_type") == "code"]
    return "\n".join(line for cell in cells for line in _lines_of_cell(cell.get("source", "")))


def _lines_of_cell(source: str | list[str]) -> list[str]:
    lines = "".join(source).splitlines()
    if lines and lines[0].startswith("%%"):  # all of the cell is of another language
        is_shell = re.match(r"%%(sh|bash)\b", lines[0])
        return [f"# {'!' if is_shell else '%'}{line}" for line in lines]
    return [_NO_PYTHON.sub(r"\1pass  # \2", line) for line in lines]
