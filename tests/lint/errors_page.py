# SPDX-License-Identifier: Apache-2.0
"""Writes docs/errors.md from the error messages in the sources.

    python tests/lint/errors_page.py            # rewrites the page
    python tests/lint/errors_page.py --check    # prints the differences; fails if there are any

Two files in tests/lint/error_messages are written by hand: template.md has the sections of the
page, and notes.md has notes on individual messages.
"""

from __future__ import annotations

import difflib
import re
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path

from error_messages.cpp_messages import CppMessages
from error_messages.notes import notes_of
from error_messages.page import page_of
from error_messages.python_messages import PythonMessages, constants_of
from error_messages.text import Message, SourceError

REPOSITORY = Path(__file__).parents[2]
PAGE = REPOSITORY / "docs/errors.md"
WRITTEN = Path(__file__).parent / "error_messages"
CPP_FOLDERS = ["include", "src", "python/bindings"]
PYTHON_FOLDERS = ["python/farandole", "python/compat"]


def sources_of(folders: list[str], suffixes: set[str]) -> dict[str, str]:
    """Maps the path of each source, relative to the repository, to its text."""
    paths = (path for folder in folders for path in sorted((REPOSITORY / folder).rglob("*")))
    return {
        path.relative_to(REPOSITORY).as_posix(): path.read_text(encoding="utf-8")
        for path in paths
        if path.suffix in suffixes
    }


def messages() -> Iterator[Message]:
    """Yields all error messages of Farandole."""
    cpp = sources_of(CPP_FOLDERS, {".h", ".cpp"})
    headers = cpp["include/farandole/error.h"] + cpp["include/farandole/comm/interrupt.h"]
    types = set(re.findall(r"^class FARANDOLE_API (\w+) :", headers, re.MULTILINE))
    yield from CppMessages(cpp, types)
    python = sources_of(PYTHON_FOLDERS, {".py"})
    constants = constants_of(python)
    for path, source in python.items():
        if "sentences" in source or "why: " in source:
            yield from PythonMessages(path, source, constants)


def page_with(found: Iterable[Message]) -> str:
    """Returns the page that these messages make."""
    template = (WRITTEN / "template.md").read_text(encoding="utf-8")
    notes = notes_of((WRITTEN / "notes.md").read_text(encoding="utf-8"))
    return page_of(found, template, notes)


def difference(page: str, current: str) -> str:
    """Returns a diff that ends with the fix; empty if the page is up to date."""
    lines = list(
        difflib.unified_diff(
            page.splitlines(), current.splitlines(), "docs/errors.md", "sources", lineterm=""
        )
    )
    fix = "docs/errors.md differs from the sources; run: make format"
    return "\n".join([*lines, fix]) if lines else ""


def main() -> int:
    """Rewrites or checks the page."""
    try:
        current = page_with(messages())
    except SourceError as error:
        print(error, file=sys.stderr)
        return 1
    if "--check" not in sys.argv[1:]:
        PAGE.write_text(current, encoding="utf-8")
        return 0
    differs = difference(PAGE.read_text(encoding="utf-8"), current)
    print(differs or "docs/errors.md is up to date.")
    return 1 if differs else 0


if __name__ == "__main__":
    sys.exit(main())
