# SPDX-License-Identifier: Apache-2.0
"""What a script of a shell uses: variables, and the launchers of other libraries."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import PurePath

from farandole.migrate.use import Use

VARIABLE = re.compile(r"\b(HOROVOD|SMDATAPARALLEL|SMDDP|SMDEBUG|SMPROFILER)_[A-Z0-9_]+\b")
LAUNCHERS = ("horovodrun", "smddprun")
_MAGIC = re.compile(r"\s*(?:pass  )?# (?:MAGIC )?(?:%sh|!)\s*")
"""How a notebook's line for a shell begins, in a file of Python."""

LINE = re.compile(
    rf"(?:\w+=\S+\s+|(?:exec|nohup|sudo|time)\s+)*(?:\S*/)?(?:{'|'.join(LAUNCHERS)})"
    r"(?=\s*$|\s+-|\s+\S*python|\s+\S+\.(?:py|sh)\b)"
)
"""How a text begins that a shell will run; other texts are messages."""
_ONLY_NAMED = frozenset(["[", "[[", "echo", "printf", "test"])
"""Commands that start no launcher that stands behind them."""
_OPERATORS = "();<>|&"
_OPERATOR = re.compile(f"[{_OPERATORS}]+")
_SUBSTITUTION = re.compile(r"\$\(\([^()]*\)\)|\$\(([^()]*)\)|`([^`]*)`")
"""``$((N * 2))``, ``$(nproc)``, `` `nproc` ``."""

_ASSIGNED = re.compile(r"^\w+=")
_QUOTE = re.compile(r"['\"]")
_DESCRIPTOR = re.compile(r"(?<=\s)\d(?=[<>])")
"""Of a file, as in ``2>&1``."""


def uses_of_shell(text: str) -> Iterator[Use]:
    """All uses, line by line; what stands behind a ``#`` is none."""
    for number, line in _lines(text):
        for match in VARIABLE.finditer(" ".join(_words(line))):
            yield Use(number, match[0])
        for command in _commands(line):
            yield from uses_of_command(number, command)


def uses_of_command(line: int, words: Sequence[str]) -> Iterator[Use]:
    """The launcher in it, also behind ``sudo``, ``time`` or variables, with its words."""
    for position, word in enumerate(words):
        if word in _ONLY_NAMED:
            return
        if PurePath(word).name in LAUNCHERS:
            yield Use(line, PurePath(word).name, value=shlex.join(words[position + 1 :]))
            return
        if " " in word:  # bash -c "...", COMMAND="..."
            yield from uses_of_quoted(line, f"{_ASSIGNED.sub('', word)} $X")


def uses_of_quoted(line: int, text: str) -> Iterator[Use]:
    """Those of a text that a shell will run; of other texts none."""
    if LINE.match(text):
        for use in uses_of_shell(text):
            yield replace(use, line=line)


def uses_of_magic(text: str) -> Iterator[Use]:
    """Those of lines that a notebook gives to a shell, in a file of Python."""
    for number, line in enumerate(text.splitlines(), 1):
        begin = _MAGIC.match(line)
        if begin:
            for use in uses_of_shell(line[begin.end() :]):
                yield replace(use, line=number)


def _lines(text: str) -> Iterator[tuple[int, str]]:
    """Each with the number of its first line, where a backslash joins several."""
    joined, first = "", 1
    for number, line in enumerate(text.splitlines(), 1):
        first = first if joined else number
        joined += line.removesuffix("\\")
        if not line.endswith("\\"):
            yield first, joined
            joined = ""
    if joined:
        yield first, joined


def _commands(line: str) -> Iterator[list[str]]:
    """The words of each command in a line, without where its output goes."""
    for inner in _SUBSTITUTION.finditer(line):
        yield from _commands(inner[1] or inner[2] or "")
    command: list[str] = []
    words = iter(_words(_DESCRIPTOR.sub("", _SUBSTITUTION.sub("$X", line))))
    for word in words:
        if not _OPERATOR.fullmatch(word):
            command.append(word)
        elif set("<>") & set(word):
            next(words, None)
        else:
            yield command
            command = []
    yield command


def _words(line: str) -> list[str]:
    """Operators are words of their own."""
    lexer = shlex.shlex(line, posix=True, punctuation_chars=_OPERATORS)
    lexer.whitespace_split = True
    try:
        return list(lexer)
    except ValueError:  # a quotation goes on in the next line: what is quoted is not known
        words = line.partition(" #")[0].split()
        return [*(f"{word}$" if _QUOTE.search(word) else word for word in words), "$X"]
