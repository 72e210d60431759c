# SPDX-License-Identifier: Apache-2.0
"""Reads the notes on individual messages from notes.md, which is written by hand."""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_PART = re.compile(r"^(what|why|fix): (.*)$", re.MULTILINE)


@dataclass(frozen=True)
class Note:
    """The note on one message."""

    texts: dict[str, list[str]] = field(default_factory=dict)
    """Maps a part, such as `why`, to texts that cannot be derived from the sources."""
    text: str = ""
    """A paragraph below the message."""


def notes_of(source: str) -> dict[str, Note]:
    """Maps the name of each message to its note."""
    entries = re.findall(r"^### (\S+)\n(.*?)(?=^### |\Z)", source, re.MULTILINE | re.DOTALL)
    notes: dict[str, Note] = {}
    for name, body in entries:
        texts: dict[str, list[str]] = {}
        for part, text in _PART.findall(body):
            texts.setdefault(part, []).append(text)
        notes[name] = Note(texts, _PART.sub("", body).strip())
    return notes
