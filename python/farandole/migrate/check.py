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
from farandole.migrate.python_names import Names
from farandole.migrate.python_uses import uses_of_python
from farandole.migrate.shell_uses import uses_of_magic, uses_of_shell
from farandole.migrate.sources import Language, Source, sources
from farandole.migrate.use import Use


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
        tree = ast.parse(source.text)
        names = Names(tree, known)
        found = [
            *_judged(uses_of_python(tree, names, known), judge),
            *_judged(uses_of_magic(source.text), judge),
            *answers_of_estimators(tree, names, source.path),
        ]
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        found = [_no_python(error)]
    yield from found


def _judged(uses: Iterable[Use], judge: Judge) -> Iterator[tuple[int, str, Answer]]:
    for use in uses:
        answer = judge.answer(use)
        if answer is not None:
            yield use.line, use.text, answer


def _no_python(error: Exception) -> tuple[int, str, Answer]:
    what = error.msg if isinstance(error, SyntaxError) else str(error)
    line = error.lineno if isinstance(error, SyntaxError) else None
    notes = (
        ("why", f"this Python cannot read it: {what}"),
        ("fix", "port it to Python 3, until python -m py_compile takes it"),
    )
    return line or 1, "the file", Answer(Verdict.REFUSED, notes)
