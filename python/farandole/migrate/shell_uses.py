# SPDX-License-Identifier: Apache-2.0
"""What a script of a shell uses: variables, and the launchers of other libraries."""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import PurePath

from farandole.migrate.use import Use

VARIABLE = re.compile(r"\b(HOROVOD|SMDATAPARALLEL|SMDDP|SMDEBUG|SMPROFILER)_[A-Z0-9_]+\b")
LAUNCHERS = ("horovodrun", "smddprun")
_MAGIC = re.compile(r"\s*(?:pass  )?# (?:MAGIC )?(?:%sh|!)\s*")
"""How a notebook's line for a shell begins, in a file of Python."""


def uses_of_shell(text: str) -> Iterator[Use]:
    """All uses, line by line; what stands behind a ``#`` is none."""
    for number, line in _lines(text):
        words = _words(line)
        for match in VARIABLE.finditer(" ".join(words)):
            yield Use(number, match[0])
        for position, word in enumerate(words):
            if PurePath(word).name in LAUNCHERS:
                arguments = shlex.join(words[position + 1 :])
                yield Use(number, PurePath(word).name, value=arguments)


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


def _words(line: str) -> list[str]:
    try:
        return shlex.split(line, comments=True)
    except ValueError:  # a quotation that goes on in the next line
        return line.partition(" #")[0].split()
