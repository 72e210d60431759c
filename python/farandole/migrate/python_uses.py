# SPDX-License-Identifier: Apache-2.0
"""What a script of Python uses: names, arguments of calls, variables, lines for a shell."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import TypeGuard

from farandole.migrate.known import Known
from farandole.migrate.python_names import Names
from farandole.migrate.shell_uses import LINE, VARIABLE, uses_of_command, uses_of_quoted
from farandole.migrate.use import Use

_OPTION = re.compile(r"EnablePerf|EnableForkFollow|BucketCount|BucketSizeMB")
"""Of SageMaker Profiler, as keys of a dictionary."""
_PLACE = re.compile(r"%[ds]|\{\w*\}")
"""Of a value, in a text that is formatted."""
_IMPORTERS = ("importlib.import_module", "import_module", "__import__")


def uses_of_python(tree: ast.AST, names: Names, known: Known) -> Iterator[Use]:
    """All uses, in no order."""
    nodes = list(ast.walk(tree))
    inner = {id(node.value) for node in nodes if isinstance(node, ast.Attribute)}
    commands = [node for node in nodes if _is_command(node)]
    wholes = [node for node in nodes if isinstance(node, (ast.JoinedStr, ast.BinOp, ast.Expr))]
    parts = {id(part) for node in (*wholes, *commands) for part in ast.iter_child_nodes(node)}
    for node in nodes:
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            yield from _imports(node, known)
        elif isinstance(node, (ast.Name, ast.Attribute)):
            if id(node) not in inner and not names.is_object(node):
                for meaning in names.meanings(node):
                    yield Use(node.lineno, meaning)
        elif isinstance(node, ast.Call):
            yield from _call(node, names, known)
        elif isinstance(node, ast.Constant) and _is_setting(node.value):
            yield Use(node.lineno, str(node.value))
        if isinstance(node, ast.expr) and id(node) not in parts:
            yield from uses_of_quoted(node.lineno, _text(node))
    for command in commands:
        yield from uses_of_command(command.lineno, _words(command))


def _imports(node: ast.Import | ast.ImportFrom, known: Known) -> Iterator[Use]:
    if isinstance(node, ast.Import):
        for alias in node.names:
            yield Use(node.lineno, alias.name, is_module=True)
    elif not node.level and node.module is not None:
        if known.is_no_module(node.module):
            yield Use(node.lineno, node.module, is_module=True)
            return
        for alias in node.names:
            name = node.module if alias.name == "*" else f"{node.module}.{alias.name}"
            yield Use(node.lineno, name)


def _call(node: ast.Call, names: Names, known: Known) -> Iterator[Use]:
    for name in names.meanings(node.func):
        takes = known.arguments(name)
        is_plain = not any(isinstance(each, ast.Starred) for each in node.args)
        given = list(zip(takes or (), node.args, strict=False)) if is_plain else []
        given += [(each.arg, each.value) for each in node.keywords if each.arg is not None]
        beside = frozenset(argument for argument, value in given if not _is_none(value))
        for argument, value in given:
            yield Use(node.lineno, name, argument, _value(value, names), beside)
        if is_plain and takes is not None and "*" not in takes and len(node.args) > len(takes):
            yield Use(node.lineno, name, f"positional argument {len(takes) + 1}")
    if ast.unparse(node.func) in _IMPORTERS and node.args:
        module = _value(node.args[0], names)
        if module is not None:
            yield Use(node.lineno, module, is_module=True)


def _is_none(node: ast.expr) -> bool:
    return isinstance(node, ast.Constant) and node.value is None


def _value(node: ast.expr, names: Names) -> str | None:
    """A constant, or the last part of a name."""
    if isinstance(node, ast.Constant):
        return str(node.value)
    for meaning in sorted(names.meanings(node)):
        return meaning.rpartition(".")[2]
    return None


def _is_setting(value: object) -> bool:
    """Whether it is the name of a variable or of an option."""
    return isinstance(value, str) and bool(VARIABLE.fullmatch(value) or _OPTION.fullmatch(value))


def _text(node: ast.expr) -> str:
    """Of an expression that gives one; what is computed counts as a variable of a shell."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return _PLACE.sub("$X", node.value)
    if isinstance(node, ast.JoinedStr):
        return "".join(map(_text, node.values))
    if isinstance(node, ast.BinOp):
        return _text(node.left) + (_text(node.right) if isinstance(node.op, ast.Add) else "")
    return "$X"


def _is_command(node: ast.AST) -> TypeGuard[ast.List | ast.Tuple]:
    """Whether it is a list as ``["horovodrun", "-np", "4", "python", "train.py"]``."""
    if not isinstance(node, (ast.List, ast.Tuple)):
        return False
    return LINE.match(" ".join(_words(node))) is not None


def _words(node: ast.List | ast.Tuple) -> list[str]:
    """With one that stands for those that may be added."""
    return [*map(_text, node.elts), "$X"]
