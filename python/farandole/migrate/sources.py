# SPDX-License-Identifier: Apache-2.0
"""The files to read: scripts of Python and of shells, and notebooks."""

from __future__ import annotations

import tokenize
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from farandole.errors import InvalidArgument, sentences
from farandole.foreign_text import is_folder
from farandole.migrate.language import Language, language_of_name
from farandole.migrate.notebooks import cells_of_notebook

_SKIPPED = frozenset(["site-packages", "node_modules", "__pycache__"])


@dataclass(frozen=True)
class Source:
    """A text."""

    path: Path
    language: Language
    text: str
    cells: tuple[tuple[str, ...], ...] = ()
    """Of a notebook, the lines of its code cells; one after the other they are the text."""
    problem: str = ""
    """Why it could not be read, if it lies in a folder; then there is no text."""


def sources(paths: Iterable[Path]) -> Iterator[Source]:
    """Each file that is named, and those of folders that are scripts or notebooks.

    Raises:
        InvalidArgument: a file that is named does not exist, or cannot be read.
    """
    for path in paths:
        if is_folder(path):
            yield from map(_read_if_possible, _scripts_below(path))
        else:
            yield _read(path)


def _read_if_possible(path: Path) -> Source:
    try:
        return _read(path)
    except InvalidArgument as error:
        return Source(path, Language.PYTHON, "", problem=str(error.__cause__))


def _scripts_below(folder: Path) -> Iterator[Path]:
    """Not those of hidden folders, and not those of installed packages."""
    for path in sorted(folder.rglob("*")):
        parts = path.relative_to(folder).parts
        is_skipped = any(part in _SKIPPED or part.startswith(".") for part in parts)
        is_script = path.suffix == ".ipynb" or language_of_name(path.name) is not None
        if is_script and not is_skipped and path.is_file():
            yield path


def _read(path: Path) -> Source:
    try:
        if path.suffix == ".ipynb":
            cells = cells_of_notebook(path.read_text("utf-8-sig"))
            text = "\n".join(line for cell in cells for line in cell)
            return Source(path, Language.PYTHON, text, cells)
        with tokenize.open(path) as file:  # in the encoding that the file says
            text = file.read()
    except (OSError, ValueError, SyntaxError, LookupError) as error:
        raise InvalidArgument(
            sentences(
                "migrate-file",
                f"'{path}' could not be read.",
                f"{error}.",
                "pass scripts of Python or of a shell, notebooks, or folders with such files.",
            )
        ) from error
    is_shell = text.startswith(("#!/bin/sh", "#!/bin/bash"))
    language = Language.SHELL if is_shell else language_of_name(path.name)
    return Source(path, language or Language.PYTHON, text)
