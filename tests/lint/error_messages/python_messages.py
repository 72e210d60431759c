# SPDX-License-Identifier: Apache-2.0
"""Reads the messages of Python sources by tracing their expressions back to string literals."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator

from .placeholder import hole, is_known
from .text import Message, SourceError, Text, named, sum_of

_Function = ast.FunctionDef | ast.AsyncFunctionDef
_WHOLE = re.compile(r"(.*)\nwhy: (.*)\nfix: (.*?)\s*\[([a-z][a-z0-9-]*)\]", re.DOTALL)
_MOST_STEPS = 3
"""The most names to trace an expression through. Beyond that it counts as a run-time value."""


class PythonMessages:
    """All messages of a Python source; `path` is relative to the repository."""

    def __init__(self, path: str, source: str, constants: dict[str, str]) -> None:
        self._path = path
        self._constants = {**constants, **constants_of({path: source})}
        self._tree = ast.parse(source)
        self._parents = {
            child: node for node in ast.walk(self._tree) for child in ast.iter_child_nodes(node)
        }
        self._functions: defaultdict[str, list[_Function]] = defaultdict(list)
        self._calls: defaultdict[str, list[ast.Call]] = defaultdict(list)
        self._owned: defaultdict[_Function | None, list[ast.AST]] = defaultdict(list)
        for node in self._parents:
            if isinstance(node, _Function):
                self._functions[node.name].append(node)
            elif isinstance(node, ast.Call):
                self._calls[_name_of(node.func)].append(node)
            elif isinstance(node, ast.Assign | ast.For | ast.Return):
                self._owned[self._owner(node)].append(node)
        self._bound: dict[_Function, dict[str, Text]] = {}
        self._active: set[tuple[ast.AST, str]] = set()

    def __iter__(self) -> Iterator[Message]:
        for node in self._parents:
            if isinstance(node, ast.Call) and _name_of(node.func) == "sentences":
                if len(node.args) != 4 or node.keywords:
                    raise self._error(node, "sentences() takes a name, what, why and fix")
                name, *parts = node.args
                if not isinstance(name, ast.Constant) or not isinstance(name.value, str):
                    raise self._error(node, "the name of this error is not a string literal")
                what, why, fix = (self._text(part, False) for part in parts)
                yield self._message(node, name.value, what, why, fix)
            elif isinstance(node, ast.JoinedStr | ast.Constant) and self._is_raised(node):
                for first, second, third, own_name in _WHOLE.findall(self._text(node, False)[0]):
                    yield self._message(node, own_name, (first,), (second,), (third,))

    def _is_raised(self, node: ast.AST) -> bool:
        parent = self._parents.get(node)
        return isinstance(parent, ast.Call) and isinstance(self._parents.get(parent), ast.Raise)

    def _message(self, node: ast.expr, name: str, what: Text, why: Text, fix: Text) -> Message:
        parent = self._parents.get(node)
        if not isinstance(parent, ast.Call) or parent.args[:1] != [node]:
            raise self._error(
                node, f"the text of {name} must be the first argument of its exception"
            )
        return Message(self._path, node.lineno, _name_of(parent.func), name, what, why, fix)

    def _error(self, node: ast.expr, text: str) -> SourceError:
        return SourceError(f"{self._path}:{node.lineno}: {text}")

    def _text(self, node: ast.expr, is_inline: bool) -> Text:
        """The text that an expression evaluates to."""
        match node:
            case ast.Constant(value=str(value)):
                return (value,)
            case ast.JoinedStr(values=values):
                return sum_of(values, self._text, is_inline)
            case ast.FormattedValue(value=value, conversion=conversion):
                return hole(ast.unparse(value)) if conversion > 0 else self._text(value, is_inline)
            case ast.BinOp(op=ast.Add(), left=left, right=right):
                return sum_of([left, right], self._text, is_inline)
            case ast.BinOp(op=ast.Mult(), left=ast.Constant(value=str(text))):  # times a condition
                return ("", text)
            case ast.IfExp(body=first, orelse=second) | ast.BoolOp(values=[first, second]):
                return (*self._text(first, is_inline), *self._text(second, is_inline))
            case ast.Name(id=name):
                return self._variable(node, name, is_inline)
            case ast.Call(func=ast.Attribute(attr="join"), args=[ast.Name(id=name)]):
                return (self._constants[name],) if name in self._constants else hole(name)
            case ast.Call(func=ast.Name() | ast.Attribute() as function, args=arguments):
                if not is_known(ast.unparse(node)):
                    return self._returned(node, _name_of(function), arguments, is_inline)
        return hole(ast.unparse(node))

    def _returned(
        self, call: ast.Call, name: str, arguments: list[ast.expr], is_inline: bool
    ) -> Text:
        """The text that a function in the same source returns."""
        options: list[str] = []
        for function in self._functions[name]:
            names = _parameters(function)
            if function in self._bound or len(names) < len(arguments):
                continue
            texts = [self._text(each, True) for each in arguments]
            self._bound[function] = dict(zip(names, texts, strict=False))
            for node in self._owned[function]:
                if isinstance(node, ast.Return) and node.value:
                    options += self._text(node.value, is_inline)
            del self._bound[function]
        return named(ast.unparse(call), options, is_inline)

    def _variable(self, node: ast.expr, name: str, is_inline: bool) -> Text:
        """The value of a parameter, a local variable or a constant."""
        owner = self._owner(node)
        while owner is not None:
            if name in self._bound.get(owner, {}):
                return self._bound[owner][name]
            if (owner, name) in self._active or len(self._active) == _MOST_STEPS:
                return hole(name)
            self._active.add((owner, name))
            try:
                options = self._assigned(owner, name, is_inline)
                if name in (parameters := _parameters(owner)):
                    options += self._passed(owner, name, parameters.index(name), is_inline)
            finally:
                self._active.remove((owner, name))
            if options or name in parameters:
                return named(name, options, is_inline)
            owner = self._owner(owner)
        own = self._assigned(None, name, is_inline)
        if not own and name in self._constants:
            return (self._constants[name],)
        return named(name, own, is_inline)

    def _assigned(self, owner: _Function | None, name: str, is_inline: bool) -> list[str]:
        """The values that are assigned to a variable of a function or of the module."""
        options: list[str] = []
        for node in self._owned[owner]:
            match node:
                case ast.Assign(targets=[ast.Name(id=target)], value=value):
                    values = [value] if target == name else []
                case ast.Assign(targets=[ast.Tuple(elts=targets)], value=ast.Tuple(elts=elements)):
                    pairs = zip(targets, elements, strict=False)
                    values = [value for target, value in pairs if _name_of(target) == name]
                case ast.For(target=target, iter=loop):
                    targets = target.elts if isinstance(target, ast.Tuple) else [target]
                    values = self._values_of(loop) if name == _name_of(targets[-1]) else []
                    if not values and name in map(_name_of, targets):
                        options += hole(name)
                case _:
                    continue
            for value in values:
                options += self._text(value, is_inline)
        return options

    def _values_of(self, loop: ast.expr) -> list[ast.expr]:
        """The values of the module's dictionary, if a loop iterates over its items()."""
        for node in self._tree.body:
            match node:
                case ast.AnnAssign(target=ast.Name(id=name), value=ast.Dict(values=values)):
                    if ast.unparse(loop) == f"{name}.items()":
                        return values
        return []

    def _passed(self, owner: _Function, name: str, position: int, is_inline: bool) -> list[str]:
        """The values that callers in the same source pass for a parameter."""
        options: list[str] = []
        for call in self._calls[owner.name]:
            given = [each.value for each in call.keywords if each.arg == name]
            for value in call.args[position : position + 1] or given or _default(owner, name):
                options += self._text(value, is_inline)
        return options

    def _owner(self, node: ast.AST) -> _Function | None:
        """The innermost function that contains a node."""
        parent = self._parents.get(node)
        while parent is not None and not isinstance(parent, _Function):
            parent = self._parents.get(parent)
        return parent


def constants_of(sources: dict[str, str]) -> dict[str, str]:
    """Maps the constants of all modules to text; the items of a list are separated by commas."""
    found: dict[str, str] = {}
    for source in sources.values():
        for node in ast.parse(source).body:
            match node:
                case (
                    ast.Assign(targets=[ast.Name(id=name)], value=ast.expr() as value)
                    | ast.AnnAssign(target=ast.Name(id=name), value=ast.expr() as value)
                ) if name.isupper():
                    text = _constant(value)
                    is_one = text and found.get(name, text) == text
                    found[name] = text if is_one else hole(name)[0]
    return found


def _constant(value: ast.expr) -> str:
    """The value of a constant as text; empty if it is unknown."""
    match value:
        case ast.Constant(value=str() | int() | float() as text):
            return str(text)
        case ast.Tuple(elts=elements) | ast.List(elts=elements) | ast.Dict(keys=elements):
            texts = [each.value for each in elements if isinstance(each, ast.Constant)]
            return ", ".join(map(str, texts)) if len(texts) == len(elements) else ""
    return ""


def _name_of(function: ast.expr) -> str:
    return ast.unparse(function).rpartition(".")[2]


def _parameters(function: _Function) -> list[str]:
    """The names of the parameters that callers pass, in order."""
    arguments = function.args
    names = [each.arg for each in (*arguments.posonlyargs, *arguments.args)]
    return [each for each in names if each not in {"self", "cls"}] + [
        each.arg for each in arguments.kwonlyargs
    ]


def _default(function: _Function, name: str) -> list[ast.expr]:
    """A list with the default of a parameter; empty if it has no default."""
    arguments = function.args
    positional = [*arguments.posonlyargs, *arguments.args]
    defaults = [*[None] * (len(positional) - len(arguments.defaults)), *arguments.defaults]
    pairs = zip(
        [*positional, *arguments.kwonlyargs], [*defaults, *arguments.kw_defaults], strict=True
    )
    return [value for each, value in pairs if each.arg == name and value is not None]
