# SPDX-License-Identifier: Apache-2.0
"""Lines of tables in the documentation, each with the uses in scripts that it is about."""

from __future__ import annotations

import re
from dataclasses import dataclass
from fnmatch import fnmatchcase

from farandole.migrate.use import Use


@dataclass(frozen=True)
class Row:
    """A line of a table.

    ``uses`` has names in full, which stand for all that is below them too. ``name(argument)`` is a
    call with that argument, ``name(argument=value)`` one with that value, ``name(argument) with
    other`` one with both, and ``*`` any text. A row without uses is about what the text of a script
    does not show.
    """

    what: str
    uses: tuple[str, ...]

    def is_about(self, use: Use) -> bool:
        """Whether it says something about a use."""
        return any(_matches(pattern, use) for pattern in self.uses)


@dataclass(frozen=True)
class Difference(Row):
    """It works, but not as it did."""

    there: str
    here: str

    @property
    def line(self) -> str:
        """As it stands on the page."""
        return f"| {self.what} | {self.there} | {self.here} |"


@dataclass(frozen=True)
class Refusal(Row):
    """It raises NotSupported."""

    why: str
    instead: str
    always: bool = True
    """False: only for some values, which the text of a script does not show."""

    @property
    def line(self) -> str:
        """As it stands on the page."""
        return f"| {self.what} | {self.why} | {self.instead} |"


@dataclass(frozen=True)
class Variable(Row):
    """A variable of the environment, or an option, that has the meaning that it had."""

    meaning: str

    @property
    def line(self) -> str:
        """As it stands on the page."""
        return f"| {self.what} | {self.meaning} |"


@dataclass(frozen=True)
class Replacement(Row):
    """It runs as it is, also over Farandole's groups; Farandole has something in its place."""

    native: str
    """The name in full."""
    gain: str

    @property
    def line(self) -> str:
        """As it stands on the page."""
        return f"| {self.what} | `{self.native}` | {self.gain} |"


def plain(text: str) -> str:
    """A cell of a table without its marks: for a terminal."""
    return re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", text).replace("`", "")


def _matches(pattern: str, use: Use) -> bool:
    found = re.fullmatch(r"([^(]+)(?:\(([^=]+?)(?:=(.*))?\)(?: with (\w+))?)?", pattern)
    assert found, pattern
    name, argument, value, other = found.groups()
    if argument is None:
        is_named = fnmatchcase(use.name, name) or fnmatchcase(use.name, f"{name}.*")
        return use.argument is None and is_named
    is_argument = fnmatchcase(use.name, name) and fnmatchcase(use.argument or "", argument)
    is_value = value is None or fnmatchcase(use.value or "", value)
    return is_argument and is_value and (other is None or other in use.beside)
