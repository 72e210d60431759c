# SPDX-License-Identifier: Apache-2.0
"""Names for what a program does."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from torch.autograd.profiler import record_function

if TYPE_CHECKING:
    from typing_extensions import Self


class annotate(contextlib.ContextDecorator):  # noqa: N801
    """Name what runs in a block or a function, as farandole::Annotation of C++.

    A recorder (`start`) and torch.profiler show it; without them it costs some microseconds::

        with annotate("Forward"):
            loss = model(batch)


        @annotate("Preprocess")
        def preprocess(batch): ...

    Threads: a block ends on the thread on which it began.
    """

    def __init__(self, name: str) -> None:
        """Of any text."""
        self._name = name
        self._open: list[record_function] = []  # of a function that calls itself

    def __enter__(self) -> Self:
        """Begin."""
        self._open.append(annotation_begin(self._name))
        return self

    def __exit__(self, *error: object) -> None:
        """End."""
        annotation_end(self._open.pop())


def annotation_begin(name: str) -> record_function:
    """Begin what `annotation_end` ends, on the same thread.

    Returns:
        What `annotation_end` takes.
    """
    annotation: Any = record_function(name)
    annotation.__enter__()
    return annotation  # type: ignore[no-any-return]


def annotation_end(annotation: record_function) -> None:
    """End what `annotation_begin` has returned."""
    annotation.__exit__(None, None, None)
