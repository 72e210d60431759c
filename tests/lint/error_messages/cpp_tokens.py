# SPDX-License-Identifier: Apache-2.0
"""Splits C++ into tokens: names, numbers, literals and punctuation marks, without comments."""

from __future__ import annotations

import ast
import re
from dataclasses import dataclass

_TOKEN = re.compile(
    r"""
    (?P<space>\s+|//[^\n]*|/\*.*?\*/|^[ \t]*\#(?:\\\n|[^\n])*)
    |(?P<raw>R"(?P<mark>[^(\s]*)\((?P<inside>.*?)\)(?P=mark)")
    |(?P<string>"(?:[^"\\\n]|\\.)*")
    |(?P<char>'(?:[^'\\\n]|\\.)+')
    |(?P<name>[A-Za-z_]\w*)
    |(?P<number>\.?\d(?:[\w.']|(?<=[eE])[+-])*)
    |(?P<mark_of>::|->|\+=|<<|==|!=|<=|>=|&&|\|\||\+\+|--|.)
    """,
    re.VERBOSE | re.DOTALL | re.MULTILINE,
)
_OPENED_BY = {")": "(", "]": "[", "}": "{"}


@dataclass(frozen=True)
class Token:
    """One token. The `text` of a string literal is its value."""

    kind: str
    """name, number, string, char or mark."""
    text: str
    at: int
    """The offset of its first character in the source."""
    end: int


def tokens_of(source: str) -> list[Token]:
    """All tokens of a source, without preprocessor lines."""
    found: list[Token] = []
    for match in _TOKEN.finditer(source):
        kind = str(match.lastgroup)
        if kind == "space":
            continue
        text = match[0]
        if kind == "string":
            text = str(ast.literal_eval(text))
        elif match["raw"] is not None:
            kind, text = "string", match["inside"]
        found.append(Token(kind.replace("mark_of", "mark"), text, match.start(), match.end()))
    return found


def partners_of(tokens: list[Token]) -> dict[int, int]:
    """Maps the index of each bracket to the index of its matching bracket."""
    partners: dict[int, int] = {}
    opened: list[int] = []
    for index, token in enumerate(tokens):
        if token.kind != "mark":
            continue
        if token.text in "([{":
            opened.append(index)
        elif token.text in _OPENED_BY:
            while opened and tokens[opened[-1]].text != _OPENED_BY[token.text]:
                opened.pop()
            if opened:
                partners[index] = opened[-1]
                partners[opened.pop()] = index
    return partners
