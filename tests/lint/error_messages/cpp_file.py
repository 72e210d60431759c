# SPDX-License-Identifier: Apache-2.0
"""The tokens and functions of a C++ source."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise

from .cpp_tokens import Token, partners_of, tokens_of

_NO_FUNCTIONS = {"if", "for", "while", "switch", "catch", "return", "sizeof", "decltype", "alignas"}
_BEHIND_PARAMETERS = {"const", "noexcept", "override", "final", "mutable"}
_BEFORE_CALLS = {"return", "throw", "else", "do"}


@dataclass(frozen=True)
class Function:
    """A function or a lambda with a body. Positions are indices of tokens."""

    name: str
    """For a lambda, the name of its variable; empty if it has none."""
    type: str
    """The last word of the return type, such as "string"; empty for lambdas."""
    parameters: tuple[str, ...]
    opening: int
    """The bracket that opens the parameters."""
    begin: int
    """The brace that opens the body."""
    end: int


class CppFile:
    """A source, split into tokens. `path` is relative to the repository."""

    def __init__(self, path: str, source: str) -> None:
        self.path = path
        self._source = source
        self.tokens: list[Token] = tokens_of(source)
        self.partners = partners_of(self.tokens)

    def text(self, begin: int, end: int) -> str:
        """The source text from token `begin` up to, but not including, token `end`, on one line."""
        if begin >= end:
            return ""
        return " ".join(self._source[self.tokens[begin].at : self.tokens[end - 1].end].split())

    @property
    def includes(self) -> list[str]:
        """The paths of the included headers of Farandole."""
        return re.findall(r'^#include "(.+)"', self._source, re.MULTILINE)

    def line(self, index: int) -> int:
        """The line of a token, counted from 1."""
        return self._source.count("\n", 0, self.tokens[index].at) + 1

    def is_mark(self, index: int, *texts: str) -> bool:
        """Whether the token at `index` is one of these punctuation marks."""
        return (
            0 <= index < len(self.tokens)
            and self.tokens[index].kind == "mark"
            and self.tokens[index].text in texts
        )

    def is_name(self, index: int) -> bool:
        """Whether the token at `index` is a name."""
        return 0 <= index < len(self.tokens) and self.tokens[index].kind == "name"

    def marks(self, begin: int, end: int, *texts: str) -> Iterator[int]:
        """The positions of these marks, except those inside brackets."""
        index = begin
        while index < end:
            if self.is_mark(index, *texts):
                yield index
            opens = self.is_mark(index, "(", "[", "{")
            index = self.partners.get(index, index) + 1 if opens else index + 1

    def arguments(self, opening: int) -> list[tuple[int, int]]:
        """The begin and end of each argument of the call whose bracket is at `opening`."""
        end = self.partners[opening]
        if opening + 1 == end:
            return []
        commas = [opening, *self.marks(opening + 1, end, ","), end]
        return [(left + 1, right) for left, right in pairwise(commas)]

    @cached_property
    def names(self) -> dict[str, list[int]]:
        """The positions of each name."""
        found: defaultdict[str, list[int]] = defaultdict(list)
        for index, token in enumerate(self.tokens):
            if token.kind == "name":
                found[token.text].append(index)
        return found

    @cached_property
    def functions(self) -> list[Function]:
        """All functions and lambdas with a body, in source order."""
        found = []
        for opening in range(1, len(self.tokens)):
            if self.is_mark(opening, "(") and opening in self.partners:
                begin = self._body(self.partners[opening] + 1)
                if begin is not None and begin in self.partners and self._may_name(opening - 1):
                    found.append(self._function(opening, begin))
        return found

    def enclosing(self, index: int) -> list[Function]:
        """The functions whose body contains the token, the innermost first."""
        around = [each for each in self.functions if each.begin < index < each.end]
        return sorted(around, key=lambda each: each.end - each.begin)

    def calls(self, name: str) -> Iterator[int]:
        """The opening brackets of all calls of the function `name`."""
        for index in self.names.get(name, []):
            before = self.tokens[index - 1] if index else None
            declares = before is not None and (
                (before.kind == "name" and before.text not in _BEFORE_CALLS)
                or (before.kind == "mark" and before.text in {">", "&", "*", "~"})
            )
            if self.is_mark(index + 1, "(") and index + 1 in self.partners and not declares:
                yield index + 1

    def _may_name(self, index: int) -> bool:
        name = self.is_name(index) and self.tokens[index].text not in _NO_FUNCTIONS
        return name or self.is_mark(index, "]")

    def _body(self, index: int) -> int | None:
        """The brace of the body after the parameters, which end before `index`; None if none."""
        while self.is_name(index) and self.tokens[index].text in _BEHIND_PARAMETERS:
            index += 1
        if self.is_mark(index, "->"):
            while index < len(self.tokens) and not self.is_mark(index, "{", ";", ")", "}", ","):
                index += 1
        if self.is_mark(index, ":"):
            return self._body_of_constructor(index + 1)
        return index if self.is_mark(index, "{") else None

    def _body_of_constructor(self, index: int) -> int | None:
        while self.is_name(index) or self.is_mark(index, "::"):
            while index < len(self.tokens) and not self.is_mark(index, "(", "{", ";", "?"):
                index += 1
            if not self.is_mark(index, "(", "{") or index not in self.partners:
                return None
            index = self.partners[index] + 1
            if not self.is_mark(index, ","):
                return index if self.is_mark(index, "{") else None
            index += 1
        return None

    def _function(self, opening: int, begin: int) -> Function:
        before = opening - 1
        kind = ""
        if self.is_name(before):
            name = self.tokens[before].text
            kind = self.tokens[before - 1].text if self.is_name(before - 1) else ""
        else:  # a lambda
            before = self.partners.get(before, before) - 1
            is_named = self.is_mark(before, "=") and self.is_name(before - 1)
            name = self.tokens[before - 1].text if is_named else ""
        parameters = tuple(self._parameters(opening))
        return Function(name, kind, parameters, opening, begin, self.partners[begin])

    def _parameters(self, opening: int) -> Iterator[str]:
        """The name of each parameter."""
        depth, last = 0, ""
        is_default = False
        for index in range(opening + 1, self.partners[opening] + 1):
            token = self.tokens[index]
            if self.is_mark(index, "<", "(", "[", "{"):
                depth += 1
            elif depth and self.is_mark(index, ">", ")", "]", "}"):
                depth -= 1
            elif depth == 0 and self.is_mark(index, ",", ")"):
                if last:
                    yield last
                last, is_default = "", False
            elif self.is_mark(index, "="):
                is_default = True
            elif token.kind == "name" and depth == 0 and not is_default:
                last = token.text
