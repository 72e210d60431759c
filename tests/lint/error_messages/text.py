# SPDX-License-Identifier: Apache-2.0
"""The text of a message: literal words, `<placeholders>`, and alternatives."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import TypeVar

from .placeholder import hole

Text = tuple[str, ...]
"""The alternatives of a text."""

Part = TypeVar("Part")

_MOST_INLINE = 5
_LONGEST_INLINE = 150
_PLACEHOLDER = re.compile(r"<[^<>|]*>")


class SourceError(Exception):
    """A message cannot be derived from the sources. The text begins with file and line."""


@dataclass(frozen=True)
class Message:
    """An error message in the sources."""

    file: str
    """The path, relative to the repository."""
    line: int
    type: str
    name: str
    what: Text
    why: Text
    fix: Text

    @property
    def place(self) -> str:
        """The file and line, in the format of compilers."""
        return f"{self.file}:{self.line}"


def pattern(text: str) -> str:
    """The text with all placeholders replaced by `<>`, to compare texts."""
    return " ".join(_PLACEHOLDER.sub("<>", text).split())


def has_words(text: Text) -> bool:
    """Whether the text has letters outside of its placeholders."""
    return any(any(letter.isalpha() for letter in pattern(each)) for each in text)


def distinct(alternatives: Iterable[str]) -> Text:
    """The alternatives; only the first of those that differ only in their placeholders."""
    found: dict[str, str] = {}
    for each in alternatives:
        found.setdefault(pattern(each), each)
    return tuple(found.values())


def join(parts: Iterable[Text]) -> Text:
    """Concatenates the parts; the alternatives of a part are put in brackets."""
    return ("".join(_inline(part) for part in parts),)


def sum_of(parts: list[Part], text_of: Callable[[Part, bool], Text], is_inline: bool) -> Text:
    """Concatenates the parts of a sum.

    The result has the alternatives of the first part whose alternatives are sentences, or that is
    the only part with a value. The alternatives of other parts are put in brackets.
    """
    texts = [text_of(part, True) for part in parts]
    values = [at for at, text in enumerate(texts) if has_words(text) or "<" in text[0]]
    for at in range(len(parts)):
        options = () if is_inline and values != [at] else text_of(parts[at], is_inline)
        if values == [at] or (texts[at] != options and sum(map(_is_sentence, options)) > 1):
            before, after = join(texts[:at])[0], join(texts[at + 1 :])[0]
            return tuple(f"{before}{each}{after}" for each in options)
    return join(texts)


def _is_sentence(text: str) -> bool:
    return len(pattern(text).split()) > 2


def _inline(text: Text) -> str:
    if len(text) == 1:
        return text[0]
    options = [each for each in text if each]
    if not has_words(tuple(options)) and not all(map(_PLACEHOLDER.fullmatch, options)):
        return "" if "" in text else options[0]  # commas and the like
    before = " " if all(each.startswith(" ") for each in options) else ""
    after = " " if all(each.endswith(" ") for each in options) else ""
    words = " | ".join(_unwrapped(each.strip()) for each in options)
    return f"{before}[{words}]{after}" if "" in text else f"{before}<{words}>{after}"


def _unwrapped(text: str) -> str:
    return text[1:-1] if _PLACEHOLDER.fullmatch(text) else text


def named(expression: str, alternatives: Iterable[str], is_inline: bool) -> Text:
    """The alternatives of a named value; its placeholder if they add nothing to the name."""
    text = distinct(each for each in alternatives if each or is_inline)
    is_long = len(text) > _MOST_INLINE or (len(text) > 1 and sum(map(len, text)) > _LONGEST_INLINE)
    is_value = is_inline and (is_long or not all(has_words((each,)) for each in text if each))
    return text if has_words(text) and not is_value else hole(expression)
