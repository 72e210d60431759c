# SPDX-License-Identifier: Apache-2.0
"""Compares each error that a test meets with docs/errors.md, which claims to have them all."""

from __future__ import annotations

import re
from collections import defaultdict
from functools import cache
from pathlib import Path

from farandole.errors import Error

_PAGE = Path(__file__).parents[2] / "docs/errors.md"
_TEXT = re.compile(r"(.*?)\nwhy: (.*)\nfix: (.*) \[([a-z0-9-]+)\]", re.DOTALL)
_LINE = re.compile(r"^(\*\*|- why: |- fix: )(`{1,2}) ?(.*?) ?\2", re.MULTILINE)
_MARKS = {"**": "what", "- why: ": "why", "- fix: ": "fix"}

_ANYTHING = "\0"

_before = Error.__init__


def compare_all() -> None:
    """From here on, errors that the page has not are AssertionErrors, also in forked ranks."""

    def init(self: Error, *args: object) -> None:
        _before(self, *args)
        if args and isinstance(args[0], str):
            check(args[0])

    Error.__init__ = init  # type: ignore[method-assign]


def check(text: str) -> None:
    """Fail if the text has the form of our errors, and the page lacks one of its sentences."""
    found = _TEXT.fullmatch(text)
    if found is None or text.count("\nwhy: ") > 1:  # it quotes another error
        return
    *parts, name = found.groups()
    for kind, part in zip(_MARKS.values(), parts, strict=True):
        known = _page().get(name, {}).get(kind, [])
        if not any(each.fullmatch(" ".join(part.split())) for each in known):
            raise AssertionError(
                f"docs/errors.md has no {kind!r} of {name} that is like: {part}\nrun `make "
                "format`; where a sentence is known at run time alone, describe it in "
                "tests/lint/error_messages/notes.md"
            )


@cache
def _page() -> dict[str, dict[str, list[re.Pattern[str]]]]:
    entries: dict[str, dict[str, list[re.Pattern[str]]]] = {}
    for section in _PAGE.read_text(encoding="utf-8").split("\n### ")[1:]:
        texts: defaultdict[str, list[re.Pattern[str]]] = defaultdict(list)
        for mark, _, text in _LINE.findall(section):
            texts[_MARKS[mark]].append(_pattern(text))
        entries[section.split("\n", 1)[0]] = texts
    return entries


def _pattern(text: str) -> re.Pattern[str]:
    """Where a placeholder stands, anything may be; what is in brackets may be missing."""
    before = ""
    while before != text:  # from the innermost placeholder to the outermost one
        before, text = text, re.sub("<[^<>]*>", _ANYTHING, text)
    parts = re.split(r" ?\[([^][]*)\]", text)
    pattern = ""
    for number, part in enumerate(parts):
        own = ".*".join(map(re.escape, part.split(_ANYTHING)))
        pattern += rf"(?: ?\[{own}\]| ?{own})?" if number % 2 else own
    return re.compile(pattern, re.DOTALL)
