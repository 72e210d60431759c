# SPDX-License-Identifier: Apache-2.0
"""The code cells of notebooks, as lines of Python.

Lines for a shell become comments, ``pass  # !ls``, which shell_uses.py reads; other lines that are
no Python become comments too. Each line stays where it is.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

from farandole.foreign_text import json_of
from farandole.migrate.language import Language, language_of_name

_CELL_MAGIC = re.compile(r"%%(\S+)\s*(.*)")
_SHELLS = frozenset(["!", "bash", "ksh", "sh", "sx", "system", "zsh"])
_OTHERS = frozenset(
    [
        *("HTML", "R", "SVG", "bigquery", "cu", "cython", "fortran", "html", "javascript", "js"),
        *("julia", "latex", "markdown", "perl", "r", "ruby", "scala", "sparkr", "sql", "svg"),
    ]
)
"""Cell magics of other languages; those that are not listed here run Python."""
_SHELL_LINE = re.compile(
    r"^(\s*)(?:[\w, ]+=\s*)?(?:!+|%(?:sx|sh|system|env|set_env)[ \t]+)\s*(?=\w|[./~$({'\"])"
)
"""Lines as ``!ls``, ``files = !ls``, ``%env NAME=1``."""
_TIMED = re.compile(r"^(\s*)%(?:time|timeit|prun|memit)\s+(?:-\w+\s+(?:\d+\s+)?)*(?=\S)")
"""Lines of Python with a magic before them, as ``%timeit -n 10 step()``."""
_NO_PYTHON = re.compile(r"^(\s*)(%%?[A-Za-z]|[!?]|[\w, ]+=\s*[%!]\w|[\w.]+\?+\s*$)")
"""Other lines, as ``%matplotlib inline``, ``?name``, ``name?``."""
_ANY = re.compile("")


def cells_of_notebook(text: str) -> tuple[tuple[str, ...], ...]:
    """The lines of each code cell, as Python; also of notebooks in the old format 3.

    Raises:
        ValueError: it is no notebook.
    """
    try:
        notebook = json_of(text, finite=False)
    except ValueError as error:
        raise ValueError(f"a notebook is JSON, and this is none: {error}") from error
    try:
        sheets = notebook.get("worksheets", [notebook])
        cells = [cell for sheet in sheets for cell in sheet["cells"]]
        texts = [_text(cell) for cell in cells if cell.get("cell_type") == "code"]
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("it is JSON, but no notebook: it has no list of cells") from error
    return tuple(tuple(_as_python(text.splitlines())) for text in texts)


def _text(cell: dict[str, Any]) -> str:
    return "".join(cell.get("source", cell.get("input", "")))


def _as_python(lines: list[str]) -> list[str]:
    empty = next((at for at, line in enumerate(lines) if line.strip()), len(lines))
    magic = _CELL_MAGIC.match(lines[empty]) if empty < len(lines) else None
    if magic is None:
        return [_line_of_python(line) for line in _joined(lines, _NO_PYTHON)]
    head, rest = [*lines[:empty], f"# {magic[0]}"], lines[empty + 1 :]
    language = _language(magic[1], magic[2].split())
    if language is Language.SHELL:
        return [*head, *(f"# !{line}" for line in _joined(rest, _ANY))]
    if language is Language.PYTHON:  # it may begin with another magic
        return [*head, *_as_python(rest)]
    return [*head, *(f"# {line}" for line in rest)]


def _language(magic: str, words: list[str]) -> Language | None:
    """None: another one."""
    if magic in ("writefile", "file"):
        return language_of_name(words[-1]) if words else None
    if magic == "script":
        magic = words[0] if words else magic
        is_python = magic.startswith(("python", "pypy"))
        return Language.SHELL if magic in _SHELLS else Language.PYTHON if is_python else None
    if magic in _SHELLS:
        return Language.SHELL
    return None if magic in _OTHERS else Language.PYTHON


def _line_of_python(line: str) -> str:
    for pattern, replacement in ((_SHELL_LINE, r"\1pass  # !"), (_TIMED, r"\1")):
        if pattern.match(line):
            return pattern.sub(replacement, line)
    return _NO_PYTHON.sub(r"\1pass  # \2", line)


def _joined(lines: Iterable[str], begin: re.Pattern[str]) -> Iterator[str]:
    """A line that begins so takes in those that it goes on in; empty ones take their places."""
    waiting = iter(lines)
    for line in waiting:
        taken = 0
        if begin.match(line):
            while line.endswith("\\") and (following := next(waiting, None)) is not None:
                line = line[:-1] + following
                taken += 1
        yield line
        yield from [""] * taken
