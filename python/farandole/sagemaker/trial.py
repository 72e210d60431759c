# SPDX-License-Identifier: Apache-2.0
"""Trials as smdebug has them."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from farandole.debugger.collection import Collection
from farandole.debugger.modes import ModeKeys
from farandole.debugger.saved_value import Array
from farandole.debugger.trial import Trial as OurTrial
from farandole.logs import LOGGER
from farandole.sagemaker import places
from farandole.sagemaker.absent import not_offered

_WITHOUT_EFFECT = ("parallel", "check", "index_mode", "cache")


class Trial(OurTrial):
    """farandole.debugger.Trial, with what smdebug's has beside it."""

    logger = LOGGER

    def tensor_names(
        self,
        show_prefixed_tensors: bool = False,
        *,
        step: int | None = None,
        mode: ModeKeys = ModeKeys.GLOBAL,
        regex: str | Iterable[str] | None = None,
        collection: str | Collection | None = None,
    ) -> list[str]:
        """As farandole.debugger.Trial's; no tensors have a prefix that hides them."""
        del show_prefixed_tensors
        return super().tensor_names(step=step, mode=mode, regex=regex, collection=collection)

    def mode_modestep(self, global_step: int) -> tuple[ModeKeys | None, int | None]:
        """The mode of a global step, and its number there; None and None if it was not saved."""
        return self.mode(global_step), self.mode_step(global_step)

    def inputs(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> list[Array]:
        """All elements of what the model got in a step."""
        return self._values(
            self.tensor_names(step=step, mode=mode, collection="inputs"), step, mode
        )

    def labels(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> list[Array]:
        """All elements of tensors with "labels" in their names."""
        return self._values(self.tensor_names(step=step, mode=mode, regex="labels"), step, mode)

    def predictions(self, step: int, mode: ModeKeys = ModeKeys.GLOBAL) -> list[Array]:
        """All elements of tensors with "predictions" in their names."""
        names = self.tensor_names(step=step, mode=mode, regex="predictions")
        return self._values(names, step, mode)

    def _values(self, names: list[str], step: int, mode: ModeKeys) -> list[Array]:
        return [self.tensor(name).value(step, mode) for name in sorted(names, key=_number)]


def _number(name: str) -> int:
    found = re.search(r"_(\d+)$", name)
    return int(found[1]) if found else 0


def create_trial(
    path: str | os.PathLike[str],
    name: str | None = None,
    profiler: bool = False,
    output_dir: str | None = None,
    range_steps: tuple[int | None, int | None] | None = None,
    **options: Any,
) -> Trial:
    """Open what a hook writes to ``path``, its out_dir.

    Args:
        path: The folder.
        name: Of the trial; that of the folder if None.
        profiler: Not supported.
        output_dir: Of profiler trials alone.
        range_steps: As farandole.debugger.create_trial().
        options: ``parallel``, ``check``, ``index_mode`` and ``cache`` have no effect.

    Raises:
        InvalidArgument: the folder does not exist.
        NotSupported: a path of S3, or ``profiler``.
    """
    del output_dir
    text = os.fspath(path).strip()
    places.refuse_s3(text, "trials are read from folders", "copy it here first, as by aws s3 sync")
    if profiler:
        raise not_offered(
            "create_trial(profiler=True)",
            "rules of the profiler judge a whole profile",
            "pass farandole.profiler.Profile(path) to rules of farandole.profiler",
        )
    unknown = sorted(set(options) - set(_WITHOUT_EFFECT))
    if unknown:
        raise TypeError(f"create_trial() got the unexpected arguments {', '.join(unknown)}")
    return Trial(Path(text), name, range_steps)


@contextmanager
def no_refresh(trials: OurTrial | Iterable[OurTrial]) -> Iterator[Any]:
    """Within it, trials see the same steps."""
    listed = [trials] if isinstance(trials, OurTrial) else list(trials)
    with ExitStack() as stack:
        for trial in listed:
            stack.enter_context(trial.no_refresh())
        yield trials
