# SPDX-License-Identifier: Apache-2.0
"""HOROVOD_* variables and lines of horovodrun, as farandole.horovod itself takes them."""

from __future__ import annotations

import shlex

from farandole.errors import Error
from farandole.horovod import flags, plan, variables
from farandole.horovod.command_line import program_of
from farandole.migrate.answer import Answer, Verdict, refusal
from farandole.migrate.use import Use

_ENDS_AT_ONCE = {"-h", "--help", "-v", "--version", "-cb", "--check-build"}


def answer_of_setting(use: Use) -> Answer | None:
    """None if it is about something else."""
    if use.name.startswith("HOROVOD_"):
        return _of_variable(use.name)
    return _of_line(shlex.split(use.value or "")) if use.name == "horovodrun" else None


def _of_variable(name: str) -> Answer:
    """By what hvd.init() would say of it."""
    told = variables.told({name: "1"})
    if not told:
        return Answer(Verdict.WORKS)
    if " has no effect: " in told:
        return Answer(Verdict.DIFFERS, (("here", told.removeprefix(f"{name} ")),))
    return Answer(Verdict.UNKNOWN, (("why", told),))


def _of_line(words: list[str]) -> Answer:
    """By what horovodrun says; words that a shell or a script will fill in are taken for sound."""
    if not words:  # it is only named
        return Answer(Verdict.WORKS)
    end = next((at for at, word in enumerate(words) if word in _ENDS_AT_ONCE), len(words))
    try:
        given = flags.parse(["1" if "$" in word else word for word in words[:end]], "")
    except Error as error:
        return Answer(Verdict.UNKNOWN, (("why", str(error).partition("\n")[0]),))
    if end < len(words) and not given.command:
        return Answer(Verdict.WORKS)
    program = words[end - len(given.command or ()) : end]
    if given.config_file or "$" in "".join(program[:1]):  # the number of ranks may be in it
        given.num_proc = given.num_proc or 1
    try:
        plan.check(given)
        program_of(given)
    except Error as error:
        return refusal(error)
    unused = tuple(
        ("here", f"--{name.replace('_', '-')}: {why}")
        for name, why in flags.WITHOUT_EFFECT.items()
        if given.has(name)
    )
    return Answer(Verdict.DIFFERS if unused else Verdict.WORKS, unused)
