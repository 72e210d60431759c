# SPDX-License-Identifier: Apache-2.0
"""Makes placeholders, the names of run-time values in messages, from their expressions."""

from __future__ import annotations

import re

_KNOWN = [
    (r"^(caller|by)\.describe\(\)$", "call"),
    (r"(describe\w*|\btopology\S*name_of)\(0\)$", "rank 0"),
    (r"(describe\w*|\btopology\S*name_of)\(.+\)$", "rank"),
    (r"text_of_ranks\(.*\)$", "ranks"),
    (r"\b(group|host|communicator)\S*name\(\)$|group_name$", "group"),
    (r"\btext_of\(\*?(signature|reference|other|calls)", "operation and arguments"),
    (r"\b(shape_of)\(.*\)$", "dtype and shape"),
    (r"\bclass_of\(.*\)$|__(qual)?name__$|tagKind\(\)$", "class"),
    (r"\.message\(.*\)$|strerror\b", "reason of the system"),
    (r"what(_without_backtrace)?\(\)$", "error"),
]
"""Placeholders of expressions for which the general rule gives an unclear name."""
_CONVERSION = re.compile(
    r"(?:[\w:.]*\b)?(?:to_string|toString|string|str|repr|int|list|tuple|map|sorted|static_cast"
    r"|name_of|text_of|sizes_text|version_text|in_words|joined|join|move|fspath|first_lines?_of|_first_lines?|cat)"
    r"(?:<[^()]*>)?\((.*)\)"
)
_COUNT = re.compile(r"len\((.+)\)|(.+?)(?:\.|->)(?:size|numel)\(\)")
_ACCESSORS = {"str", "string", "c_str", "get", "value", "front", "back", "strip", "self", "count"}


_SYNONYMS = {
    "self": "object",
    "met": "error",
    "dlerror": "error",
    "who": "rank",
    "own position": "rank and group",
    "subject": "collective",
    "cause of death": "how it ended",
    "how": "how it ended",
    "how lost": "how it ended",
}
"""Replacements for variable names that are unclear outside their function."""


def hole(expression: str) -> tuple[str, ...]:
    """Returns the placeholder of a value in a message, such as `<world size - 1>`."""
    return (f"<{_words(expression.strip())}>",)


def is_known(expression: str) -> bool:
    """Whether the expression has a placeholder in `_KNOWN`."""
    return any(re.search(known, expression) for known, _ in _KNOWN)


def _words(expression: str) -> str:
    for known, words in _KNOWN:
        if re.search(known, expression):
            return words
    expression = re.sub(r"^(['\"]).*?\1\.join\(", "join(", expression)
    match = _CONVERSION.fullmatch(expression)
    if match and _is_balanced(match[1]):
        return _words(match[1].split(", ")[-1] if "map(" in expression else match[1])
    if match := _COUNT.fullmatch(expression):
        return f"number of {_words(match[1] or match[2])}"
    if match := re.fullmatch(r"(.+) ([-+*]) (.+)", expression):
        return f"{_words(match[1])} {match[2]} {_words(match[3])}"
    return _last_name(expression)


def _is_balanced(text: str) -> bool:
    depth = 0
    for letter in text:
        depth += (letter in "([{") - (letter in ")]}")
        if depth < 0:
            return False
    return True


def _last_name(expression: str) -> str:
    outer = expression
    while (shorter := re.sub(r"\([^()]*\)|\[[^][]*\]|<[^<>]*>", "", outer)) != outer:
        outer = shorter
    names = re.findall(r"[A-Za-z_]\w*|\d+", outer) or re.findall(r"\w+", expression) or ["value"]
    while len(names) > 1 and names[-1] in _ACCESSORS:
        names.pop()
    constant = re.sub(r"^k(?=[A-Z])", "", names[-1])
    words = re.sub(r"(?<=[a-z])(?=[A-Z])", "_", constant).strip("_").replace("_", " ").lower()
    return _SYNONYMS.get(words, words)
