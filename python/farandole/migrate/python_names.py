# SPDX-License-Identifier: Apache-2.0
"""What the names of a script stand for: imports, and results of calls that are known."""

from __future__ import annotations

import ast
from collections import defaultdict

from farandole.migrate.known import Known


class Names:
    """Names of one file. Where a name stands for several things, all of them count.

    Blocks and functions are not told apart: scripts import under ``if``, and pass what they have
    imported to their functions by the same name.
    """

    def __init__(self, tree: ast.AST, known: Known) -> None:
        self._known = known
        self._imported: dict[str, set[str]] = defaultdict(set)
        self._assigned: dict[str, set[str]] = {}
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                self._import(node)
            elif isinstance(node, ast.ImportFrom):
                self._import_from(node)
        self._follow_assignments(tree)

    def meanings(self, node: ast.expr) -> set[str]:
        """Names in full of what an expression is; of an object, the name of its class."""
        if isinstance(node, ast.Name):
            return self._imported.get(node.id) or self._assigned.get(node.id) or set()
        if isinstance(node, ast.Attribute):
            own = self._assigned.get(ast.unparse(node))
            return own or {f"{each}.{node.attr}" for each in self.meanings(node.value)}
        if isinstance(node, ast.Call):
            given = (self._known.result(each) for each in self.meanings(node.func))
            return {each for each in given if each is not None}
        return set()

    def is_object(self, node: ast.expr) -> bool:
        """Whether it is the name of an object, whose class stands elsewhere in the file."""
        return ast.unparse(node) in self._assigned

    def _import(self, node: ast.Import) -> None:
        for alias in node.names:
            top = alias.name.partition(".")[0]
            self._imported[alias.asname or top].add(alias.name if alias.asname else top)

    def _import_from(self, node: ast.ImportFrom) -> None:
        if node.level or node.module is None or self._known.is_no_module(node.module):
            return
        for alias in node.names:
            names = self._known.names_in(node.module) if alias.name == "*" else [alias.name]
            for name in names:
                self._imported[alias.asname or name].add(f"{node.module}.{name}")

    def _follow_assignments(self, tree: ast.AST) -> None:
        """Only names that get nothing else than objects of one class."""
        pairs = [pair for node in ast.walk(tree) for pair in _assignments(node)]
        for _ in range(3):  # trial = create_trial(...); loss = trial.tensor(...)
            found: dict[str, set[str]] = {}
            unclear = set()
            for target, value in pairs:
                meanings = self.meanings(value) if isinstance(value, ast.Call) else set()
                if not meanings or found.setdefault(target, meanings) != meanings:
                    unclear.add(target)
            self._assigned = {
                name: meanings for name, meanings in found.items() if name not in unclear
            }


def _assignments(node: ast.AST) -> list[tuple[str, ast.expr]]:
    """Targets as text, with what they get; ``hook = None`` says nothing."""
    if isinstance(node, ast.Assign):
        pairs = [(target, node.value) for target in node.targets]
    elif isinstance(node, (ast.AnnAssign, ast.NamedExpr)) and node.value is not None:
        pairs = [(node.target, node.value)]
    elif isinstance(node, ast.withitem) and node.optional_vars is not None:
        pairs = [(node.optional_vars, node.context_expr)]
    else:
        return []
    return [
        (ast.unparse(target), value)
        for target, value in pairs
        if isinstance(target, (ast.Name, ast.Attribute))
        and not (isinstance(value, ast.Constant) and value.value is None)
    ]
