# SPDX-License-Identifier: Apache-2.0
"""Writes the page: replaces `{InvalidArgument}` in a template by the messages of that type."""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import replace

from .notes import Note
from .text import Message, SourceError, Text, distinct, has_words, pattern

_PROGRAMS = {
    "python/farandole/run/function": "Python",
    "python/farandole/run/": "`farandole run`",
    "python/farandole/bench/predict/": "`farandole bench predict`",
    "python/farandole/bench/": "`farandole bench`",
    "python/farandole/horovod/": "`horovodrun`",
    "python/farandole/migrate/": "Python; `farandole migrate check`",
    "python/farandole/": "Python",
    "python/compat/": "Python",
}
"""Maps the start of a path to the program that reports its messages; C++ paths have none."""
_CLEAR = ["<error>", "<reason of the system>"]
"""Placeholders that are clear without other words."""
_SLOT = re.compile(r"^\{(\w+)\}$", re.MULTILINE)


def page_of(messages: Iterable[Message], template: str, notes: dict[str, Note]) -> str:
    """Returns the whole page."""
    by_name: defaultdict[str, list[Message]] = defaultdict(list)
    for message in messages:
        by_name[message.name].append(message)
    if unknown := sorted(notes.keys() - by_name.keys()):
        raise SourceError(f"notes.md: no message has the name {', '.join(unknown)}")
    entries: defaultdict[str, list[str]] = defaultdict(list)
    for name, own in sorted(by_name.items()):
        for each in own:
            if each.type != own[0].type:
                raise SourceError(
                    f"{each.place}: {own[0].place} uses the name {name} for another type"
                )
        entries[own[0].type].append(_entry(own, notes.get(name, Note())))
    slots = _SLOT.findall(template)
    for kind, texts in entries.items():
        if slots.count(kind) != 1:
            place = by_name[texts[0].split()[1]][0].place
            raise SourceError(f"{place}: template.md has not one place for {{{kind}}}")
    if empty := sorted(set(slots) - entries.keys()):
        raise SourceError(f"template.md: no message has the type {', '.join(empty)}")
    return _SLOT.sub(lambda slot: "\n\n".join(entries[slot[1]]), template)


def _entry(messages: list[Message], note: Note) -> str:
    """Returns the heading of a name and the messages with that name."""
    silent = {
        part for each in messages for part, text in _parts(each) if not all(map(_is_told, text))
    }
    told = [_told(message, note, silent) for message in messages]
    alike: dict[tuple[str, ...], list[Message]] = {}
    for message in told:
        alike.setdefault(tuple(map(pattern, message.what)), []).append(message)
    blocks = [f"### {messages[0].name}"]
    for group in alike.values():
        mark = _mark(group)
        blocks += [f"**{_code(each)}**{mark}" for each in group[0].what]
        lines = [
            f"- {part}: {_code(each)}"
            for part, texts in (("why", [m.why for m in group]), ("fix", [m.fix for m in group]))
            for each in distinct(each for text in texts for each in text)
        ]
        blocks.append("\n".join(lines))
    return "\n\n".join([*blocks, *([note.text] if note.text else [])])


def _told(message: Message, note: Note, silent: set[str]) -> Message:
    """Returns the message with the texts of its note in place of parts that have no words.

    If that part has words in every message of the name, the texts of the note are added to it.
    """
    for part, text in _parts(message):
        own = tuple(filter(_is_told, text))
        by_hand = tuple(note.texts.get(part, []))
        if len(own) < len(text) and not by_hand:
            raise SourceError(
                f"{message.place}: in the {part} of {message.name} the sources have only values: "
                f"{text}; describe them in notes.md"
            )
        if len(own) < len(text) or part not in silent:
            message = replace(message, **{part: own + by_hand})  # type: ignore[arg-type]
    return message


def _parts(message: Message) -> list[tuple[str, Text]]:
    return [("what", message.what), ("why", message.why), ("fix", message.fix)]


def _is_told(text: str) -> bool:
    return has_words((text,)) or any(clear in text for clear in _CLEAR)


def _mark(messages: list[Message]) -> str:
    programs = {
        next((name for path, name in _PROGRAMS.items() if each.file.startswith(path)), "")
        for each in messages
    }
    return "" if "" in programs else f" ({'; '.join(sorted(programs))})"


def _code(text: str) -> str:
    text = " ".join(text.split())
    return f"`` {text} ``" if "`" in text else f"`{text}`"
