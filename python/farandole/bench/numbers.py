# SPDX-License-Identifier: Apache-2.0
"""Options that are numbers, or lists of words or numbers divided by commas."""

from __future__ import annotations

from collections.abc import Sequence

from farandole.errors import InvalidArgument, sentences


def number_of(option: str, text: str, *, least: int) -> int:
    """The integer that ``option`` was given.

    Raises:
        InvalidArgument: it is none, or below ``least``.
    """
    if text.isascii() and text.isdigit() and int(text) >= least:
        return int(text)
    raise InvalidArgument(
        sentences(
            "bench-number",
            f"{option} was '{text}'.",
            f"it is an integer of at least {least}.",
            f"pass such a number; --help explains {option}.",
        )
    )


def numbers_of(option: str, text: str, *, least: int) -> list[int]:
    """The different integers, divided by commas, that ``option`` was given, in rising order."""
    return sorted({number_of(option, word, least=least) for word in text.split(",")})


def names_of(option: str, text: str, known: Sequence[str]) -> list[str]:
    """The different words, divided by commas; "all" means all that are known.

    Raises:
        InvalidArgument: one is not known.
    """
    if text == "all":
        return list(known)
    words = list(dict.fromkeys(text.split(",")))
    for word in words:
        if word not in known:
            raise InvalidArgument(
                sentences(
                    "bench-choice",
                    f"{option} was '{text}', and there is no '{word}'.",
                    f"{option} takes {', '.join(known)}, several of them with commas, or all.",
                    "pass one of these.",
                )
            )
    return words
