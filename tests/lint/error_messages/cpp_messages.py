# SPDX-License-Identifier: Apache-2.0
"""Reads the messages of C++ sources by tracing their expressions back to string literals."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from functools import cached_property
from itertools import pairwise
from pathlib import PurePath

from .cpp_file import CppFile, Function
from .placeholder import hole, is_known
from .text import Message, SourceError, Text, has_words, join, named, sum_of

_SAME_TEXT = {"string", "string_view", "move"}
_FOREIGN = {"std", "c10", "at", "torch", "c10d"}
_MOST_STEPS = 3
"""The most names to trace an expression through. Beyond that it counts as a run-time value."""


class CppMessages:
    """All messages of C++ sources. `sources` maps each path to its text."""

    def __init__(self, sources: dict[str, str], types: set[str]) -> None:
        self._files = [CppFile(path, source) for path, source in sources.items()]
        self._types = types
        self._bound: dict[tuple[str, int], dict[str, Text]] = {}
        self._active: set[tuple[str, int, str]] = set()

    def __iter__(self) -> Iterator[Message]:
        for file in self._files:
            for index, token in enumerate(file.tokens):
                if token.kind == "name" and token.text in self._types:
                    yield from self._constructed(file, index, token.text)
                elif token.text == "return" and file.is_mark(index + 1, "{"):
                    function = next(iter(file.enclosing(index)), None)
                    if function and function.type in self._types:
                        yield self._message(file, index + 1, function.type)

    def _constructed(self, file: CppFile, index: int, kind: str) -> Iterator[Message]:
        opening = index + 1 + file.is_mark(index + 1, ">")  # as in std::make_unique<PeerFailure>(
        is_variable = file.is_name(opening)
        opening += is_variable
        if not file.is_mark(opening, "(", "{") or opening not in file.partners:
            return
        first = file.tokens[opening + 1]
        before = file.tokens[index - 1].text if index else ""
        is_raised = before in {"throw", "return"} or file.text(index - 2, index).endswith("ptr(")
        if first.kind == "string":
            yield self._message(file, opening, kind)
        elif is_raised and not is_variable:
            raise SourceError(
                f"{file.path}:{file.line(index)}: the name of this error is not a string literal"
            )

    def _message(self, file: CppFile, opening: int, kind: str) -> Message:
        place = f"{file.path}:{file.line(opening)}"
        arguments = file.arguments(opening)
        if len(arguments) not in (4, 5):
            raise SourceError(f"{place}: an error takes a name, what, why and fix")
        (begin, end), *parts = arguments
        if end - begin != 1 or file.tokens[begin].kind != "string":
            raise SourceError(f"{place}: the name of this error is not a string literal")
        what, why, fix = (self._text(file, *part, False) for part in parts[:3])
        return Message(file.path, file.line(opening), kind, file.tokens[begin].text, what, why, fix)

    def _text(self, file: CppFile, begin: int, end: int, is_inline: bool) -> Text:
        """The text that an expression evaluates to."""
        while file.is_mark(begin, "(") and file.partners.get(begin) == end - 1:
            begin, end = begin + 1, end - 1
        tokens = file.tokens[begin:end]
        question = next(file.marks(begin, end, "?"), None)
        if question is not None:
            colon = self._colon(file, question, end)
            options = [(question + 1, colon), (colon + 1, end)]
            return tuple(each for span in options for each in self._text(file, *span, is_inline))
        pluses = list(file.marks(begin, end, "+"))
        if pluses:
            spans = [(left + 1, right) for left, right in pairwise([begin - 1, *pluses, end])]
            return sum_of(spans, lambda span, inline: self._text(file, *span, inline), is_inline)
        if all(token.kind == "string" for token in tokens):
            return ("".join(token.text for token in tokens),)
        if len(tokens) == 1 and tokens[0].kind == "char":
            return (tokens[0].text[1:-1],)
        if len(tokens) == 1 and tokens[0].kind == "name":
            return self._variable(file, begin, is_inline)
        expression = file.text(begin, end)
        opening = next(file.marks(begin, end, "(", "{"), end)
        path = [token.text for token in file.tokens[begin:opening]]
        if file.partners.get(opening) != end - 1 or is_known(expression) or not path:
            return hole(expression)
        arguments = file.arguments(opening)
        is_number = path[-1] == "to_string" and file.is_name(opening + 1) and end - opening == 3
        if arguments and (path[-1] in _SAME_TEXT or is_number):
            return self._text(file, *arguments[0], is_inline)
        if path[0] not in _FOREIGN and all(each == "::" or each.isidentifier() for each in path):
            return self._returned(file, path[-1], arguments, expression, is_inline)
        return hole(expression)

    @staticmethod
    def _colon(file: CppFile, question: int, end: int) -> int:
        depth = 0
        for index in file.marks(question, end, "?", ":"):
            depth += 1 if file.is_mark(index, "?") else -1
            if depth == 0:
                return index
        raise SourceError(f"{file.path}:{file.line(question)}: '?' without ':'")

    def _returned(
        self,
        file: CppFile,
        name: str,
        arguments: list[tuple[int, int]],
        expression: str,
        is_inline: bool,
    ) -> Text:
        """The text that a function in the sources returns."""
        texts = [self._text(file, *span, True) for span in arguments]
        options: list[str] = []
        for owner, function in self._definitions(file, name):
            key = (owner.path, function.opening)
            if key in self._bound or len(function.parameters) < len(texts):
                continue
            self._bound[key] = dict(zip(function.parameters, texts, strict=False))
            for index in owner.names.get("return", []):
                if function in owner.enclosing(index)[:1]:
                    end = next(owner.marks(index, function.end, ";"))
                    options += self._text(owner, index + 1, end, is_inline)
            del self._bound[key]
        return named(expression, options, is_inline)

    def _definitions(self, file: CppFile, name: str) -> list[tuple[CppFile, Function]]:
        known = self._functions.get(name, [])
        own = [each for each in known if each[0] is file]
        return own or [each for each in known if file in self._users(each[0], name)]

    @cached_property
    def _functions(self) -> dict[str, list[tuple[CppFile, Function]]]:
        found: defaultdict[str, list[tuple[CppFile, Function]]] = defaultdict(list)
        for file in self._files:
            for function in file.functions:
                found[function.name].append((file, function))
        return found

    def _variable(self, file: CppFile, index: int, is_inline: bool) -> Text:
        """The value of a parameter, a local variable or a constant."""
        name = file.tokens[index].text
        for function in file.enclosing(index):
            key = (file.path, function.opening, name)
            if name in self._bound.get(key[:2], {}):
                return self._bound[key[:2]][name]
            if key in self._active or len(self._active) == _MOST_STEPS:
                return hole(name)
            self._active.add(key)
            try:
                if name in function.parameters:
                    return named(name, self._passed(file, function, name, is_inline), is_inline)
                local = self._assigned(file, name, function.begin, index)
            finally:
                self._active.remove(key)
            if local is not None:
                return named(name, local, is_inline)
        for owner in [file, *(each for each in self._files if name.startswith("k"))]:
            for at in owner.names.get(name, []):
                if not owner.enclosing(at) and (value := self._initial_value(owner, at)):
                    return named(name, self._text(owner, *value, is_inline), is_inline)
        return hole(name)

    def _passed(
        self, file: CppFile, function: Function, name: str, is_inline: bool
    ) -> Iterator[str]:
        """The values that callers pass for a parameter."""
        at = function.parameters.index(name)
        for caller in self._users(file, function.name) if function.name else ():
            for opening in caller.calls(function.name):
                arguments = caller.arguments(opening)
                if (caller, opening) != (file, function.opening) and len(arguments) > at:
                    yield from self._text(caller, *arguments[at], is_inline)

    def _users(self, file: CppFile, function: str) -> list[CppFile]:
        """The file, and the files that include the header that declares the function."""
        header = "/".join(PurePath(file.path).with_suffix(".h").parts[-2:])
        is_declared = any(function in each.names for each in self._headers[header])
        others = self._including[header] if is_declared else []
        return [file, *(each for each in others if each is not file)]

    @cached_property
    def _headers(self) -> dict[str, list[CppFile]]:
        """Maps the last two parts of a header's path to the files with that path."""
        found: defaultdict[str, list[CppFile]] = defaultdict(list)
        for file in self._files:
            found["/".join(PurePath(file.path).parts[-2:])].append(file)
        return found

    @cached_property
    def _including(self) -> dict[str, list[CppFile]]:
        """Maps the last two parts of a header's path to the files that include it."""
        found: defaultdict[str, list[CppFile]] = defaultdict(list)
        for file in self._files:
            for include in file.includes:
                found["/".join(PurePath(include).parts[-2:])].append(file)
        return found

    def _assigned(self, file: CppFile, name: str, begin: int, end: int) -> Text | None:
        """The value of a local variable before `end`; None if it is not a local variable."""
        options: list[str] = []
        added: list[Text] = []
        for at in file.names.get(name, []):
            if not begin < at < end:
                continue
            if file.is_mark(at + 1, "+="):
                stop = next(file.marks(at, file.partners[begin], ";", ")"), end)
                more = self._text(file, at + 2, stop, True)
                is_more = any(options) or any(map(has_words, added))
                added.append(("", *more) if is_more else more)
            elif value := self._initial_value(file, at):
                options += self._text(file, *value, not added)
        if not options and not added:
            return None
        first = named(name, options, True) if any(options) else ("",)
        return join([first, *added]) if added else tuple(options)

    @staticmethod
    def _initial_value(file: CppFile, at: int) -> tuple[int, int] | None:
        after = at + 3 if file.is_mark(at + 1, "[") and file.is_mark(at + 2, "]") else at + 1
        if file.is_mark(at - 1, ".", "->"):
            return None
        if file.is_mark(after, "="):
            stop = next(file.marks(after, len(file.tokens), ";", ","), None)
            return (after + 1, stop) if stop is not None else None
        is_declared = file.is_name(at - 1) and file.tokens[at - 1].text != "return"
        if is_declared and file.is_mark(after, "(", "{") and after in file.partners:
            arguments = file.arguments(after)
            return arguments[0] if len(arguments) == 1 else None
        return None
