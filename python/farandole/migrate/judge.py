# SPDX-License-Identifier: Apache-2.0
"""Answers each use of a script."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import replace
from typing import TypeGuard

from farandole.migrate.answer import Answer, Verdict
from farandole.migrate.horovod_settings import answer_of_setting
from farandole.migrate.known import TOPS, Known
from farandole.migrate.pages import ROWS
from farandole.migrate.rows import Difference, Refusal, Replacement, Row, Variable, plain
from farandole.migrate.shell_uses import VARIABLE
from farandole.migrate.use import Use


class Judge:
    """Answers uses by the tables of the pages, and by the names that there are."""

    def __init__(self, known: Known, rows: Iterable[Row] = ROWS) -> None:
        self._known = known
        self._rows = tuple(rows)

    def answer(self, use: Use) -> Answer | None:
        """None if it is about something else."""
        setting = answer_of_setting(use)
        if setting is not None:
            return setting
        own = replace(use, name=self._known.canonical(use.name))
        rows = [row for row in self._rows if row.is_about(use) or row.is_about(own)]
        if rows:
            exact = [row for row in rows if use.argument is None and use.name in row.uses]
            return _of_rows(exact or rows)
        if use.argument is not None:
            return self._of_argument(use)
        if VARIABLE.fullmatch(use.name):
            names = [name for row in self._rows for name in row.uses if VARIABLE.fullmatch(name)]
            return _unknown(use.name, names)
        if use.name.partition(".")[0] not in TOPS:
            return None
        if self._known.has_module(use.name) if use.is_module else self._known.has(use.name):
            return Answer(Verdict.WORKS)
        return self._unknown_name(use)

    def _of_argument(self, use: Use) -> Answer | None:
        """Arguments that there are, are no news."""
        natives = [row.native for row in self._rows if _is_replacement(row, use)]
        takes = self._known.arguments(natives[0] if natives else use.name)
        if takes is None or use.argument in takes or "*" in takes:
            return None
        assert use.argument is not None
        return _unknown(use.argument, takes)

    def _unknown_name(self, use: Use) -> Answer:
        """The nearest where the name leaves what is known."""
        is_known = self._known.has_module if use.is_module else self._known.has
        owner = use.name
        while not is_known(owner) and "." in owner:
            owner = owner.rpartition(".")[0]
        wrong = use.name.removeprefix(f"{owner}.").partition(".")[0]
        inside = self._known.names_in(owner)
        answer = _unknown(wrong, [each for each in inside if is_known(f"{owner}.{each}")])
        if use.is_module and self._known.has(use.name):
            why = ("why", f"there is {use.name}, but no module of this name")
            return replace(answer, notes=(why, *answer.notes))
        return answer


def _is_replacement(row: Row, use: Use) -> TypeGuard[Replacement]:
    return isinstance(row, Replacement) and row.is_about(Use(use.line, use.name))


def _of_rows(rows: list[Row]) -> Answer:
    refused = [row for row in rows if isinstance(row, Refusal)]
    for row in refused:
        if row.always:
            return Answer(Verdict.REFUSED, (("why", plain(row.why)), ("fix", plain(row.instead))))
    notes = tuple(note for row in rows for note in _notes(row))
    differs = refused or any(isinstance(row, Difference) for row in rows)
    return Answer(Verdict.DIFFERS if differs else Verdict.WORKS, notes)


def _notes(row: Row) -> list[tuple[str, str]]:
    if isinstance(row, Refusal):
        text = f"{plain(row.what)}: {plain(row.why)}; instead {plain(row.instead)}"
        return [("refused", text)]
    if isinstance(row, Difference):
        return [("there", plain(row.there)), ("here", plain(row.here))]
    if isinstance(row, Replacement):
        return [("natively", f"{row.native}: {plain(row.gain)}")]
    return [("here", plain(row.meaning))] if isinstance(row, Variable) else []


def _unknown(name: str, known: Iterable[str]) -> Answer:
    near = difflib.get_close_matches(name, list(known), n=1)
    return Answer(Verdict.UNKNOWN, (("nearest", near[0]),) if near else ())
