# SPDX-License-Identifier: Apache-2.0
"""Names for what a program does."""

from __future__ import annotations

import contextlib
import threading
from typing import TYPE_CHECKING

import torch

from farandole import _C, arguments

if TYPE_CHECKING:
    from typing_extensions import Self


class annotate(contextlib.ContextDecorator):  # noqa: N801
    """Name what runs in a block or a function, as farandole::Annotation of C++.

    A recorder (`start`) and torch.profiler show it; without them it costs less than a microsecond::

        with annotate("Forward"):
            loss = model(batch)


        @annotate("Preprocess")
        def preprocess(batch): ...

    Within torch.compile() it does nothing. Threads: a block ends on the thread on which it began.
    """

    def __init__(self, name: str) -> None:
        """Of any text.

        Raises:
            InvalidArgument: it is no text.
        """
        self._name = _text("annotate", name)
        # By thread, since threads share a decorator; a list, as a function may call itself.
        self._open: dict[int, list[_C.OpenAnnotation]] = {}

    def __enter__(self) -> Self:
        """Begin."""
        if not torch.compiler.is_compiling():
            own = self._open.setdefault(threading.get_ident(), [])
            own.append(_C.OpenAnnotation(self._name))
        return self

    def __exit__(self, *error: object) -> None:
        """End."""
        if torch.compiler.is_compiling():
            return
        thread = threading.get_ident()
        own = self._open.get(thread)
        if own:
            own.pop().end()
            if not own:
                del self._open[thread]


def annotation_begin(name: str) -> _C.OpenAnnotation:
    """Begin what `annotation_end` ends, on the same thread.

    Returns:
        What `annotation_end` takes.

    Raises:
        InvalidArgument: it is no text.
    """
    return _C.OpenAnnotation(_text("annotation_begin", name))


def annotation_end(annotation: _C.OpenAnnotation) -> None:
    """End what `annotation_begin` has returned.

    Raises:
        InvalidArgument: it has returned something else.
    """
    if not isinstance(annotation, _C.OpenAnnotation):
        raise arguments.wrong(
            "annotation_end", "annotation", annotation, "what annotation_begin() has returned"
        )
    annotation.end()


def _text(function: str, name: str) -> str:
    if not isinstance(name, str):
        raise arguments.wrong(function, "name", name, "a str")
    return name
