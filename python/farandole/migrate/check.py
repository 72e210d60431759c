# SPDX-License-Identifier: Apache-2.0
"""Reads files, and answers all that they use."""

from __future__ import annotations

import ast
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from farandole.migrate.answer import Answer, Verdict
from farandole.migrate.estimator import answers_of_estimators
from farandole.migrate.judge import Judge
from farandole.migrate.known import Known
from farandole.migrate.language import Language, language_of_name
from farandole.migrate.python_names import Names
from farandole.migrate.python_uses import uses_of_python
from farandole.migrate.shell_uses import uses_of_magic, uses_of_shell
from farandole.migrate.sources import Source, sources
from farandole.migrate.use import Use

_UNREADABLE = (SyntaxError, ValueError, RecursionError, MemoryError)
"""What parsers raise."""


@dataclass(frozen=True)
class Finding:
    """Something that a file uses, and what it gets."""

    path: Path
    lines: tuple[int, ...]
    text: str
    answer: Answer


def check(paths: Iterable[Path]) -> list[Finding]:
    """Everything in these files and folders, in the order of files and lines.

    Raises:
        InvalidArgument: a file does not exist, or cannot be read.
    """
    known = Known()
    judge = Judge(known)
    return [each for source in sources(paths) for each in _of_source(source, known, judge)]


def _of_source(source: Source, known: Known, judge: Judge) -> list[Finding]:
    lines: dict[tuple[str, Answer], set[int]] = {}
    for line, text, answer in _answers(source, known, judge):
        lines.setdefault((text, answer), set()).add(line)
    found = [
        Finding(source.path, tuple(sorted(numbers)), text, answer)
        for (text, answer), numbers in lines.items()
    ]
    return sorted(found, key=lambda each: (each.lines[0], each.text))


def _answers(source: Source, known: Known, judge: Judge) -> Iterator[tuple[int, str, Answer]]:
    if source.problem:
        notes = (("why", source.problem), ("fix", "check it alone"))
        yield 1, "the file", Answer(Verdict.REFUSED, notes)
        return
    if source.language is Language.SHELL:
        yield from _judged(uses_of_shell(source.text), judge)
        return
    try:
        tree, unread = _parsed(source)
        names = Names(tree, known)
        found = [
            *unread,
            *_judged(uses_of_python(tree, names, known), judge),
            *_judged(uses_of_magic(source.text), judge),
            *answers_of_estimators(tree, names, source.path),
        ]
    except _UNREADABLE as error:
        found = [_no_python(error, source.path)]
    yield from found


def _parsed(source: Source) -> tuple[ast.Module, list[tuple[int, str, Answer]]]:
    """Of a notebook, the cells that can be read, and answers for the others."""
    try:
        return ast.parse(source.text), []
    except _UNREADABLE:
        if not source.cells:
            raise
    read: list[str] = []
    unread = []
    for number, lines in enumerate(source.cells, 1):
        try:
            ast.parse("\n".join(lines))
        except _UNREADABLE as error:
            line, _, answer = _no_python(error, source.path)
            unread.append((len(read) + line, f"code cell {number}", answer))
            read += [""] * len(lines)
        else:
            read += lines
    return ast.parse("\n".join(read)), unread


def _judged(uses: Iterable[Use], judge: Judge) -> Iterator[tuple[int, str, Answer]]:
    for use in uses:
        answer = judge.answer(use)
        if answer is not None:
            yield use.line, use.text, answer


def _no_python(error: Exception, path: Path) -> tuple[int, str, Answer]:
    what = error.msg if isinstance(error, SyntaxError) else str(error)
    line = error.lineno if isinstance(error, SyntaxError) else None
    if path.suffix in ("", ".ipynb") or language_of_name(path.name):
        why = f"this Python cannot read it: {what}"
        fix = "port it to Python 3, until python -m py_compile takes it"
    else:
        why = "by its name it is no script, and this Python cannot read it as one"
        fix = "pass scripts of Python (.py) or of a shell (.sh), notebooks, or folders"
    return line or 1, "the file", Answer(Verdict.REFUSED, (("why", why), ("fix", fix)))
