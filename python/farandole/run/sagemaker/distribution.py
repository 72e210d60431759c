# SPDX-License-Identifier: Apache-2.0
"""The argument ``distribution`` of SageMaker's estimators."""

from __future__ import annotations

import json
import os
import shlex
from pathlib import Path
from typing import Any

from farandole.errors import InvalidArgument, sentences
from farandole.run.hosts import MOST_RANKS
from farandole.run.sagemaker.job import SageMakerJob
from farandole.run.sagemaker.values import integer_of, object_of, wrong
from farandole.sagemaker.absent import not_offered

_LAUNCHES = ("smdistributed", "pytorchddp", "torch_distributed", "mpi")
_OPTIONS = ("enabled", "custom_mpi_options", "processes_per_host", "communication_options")
_ELSEWHERE = {
    "parameter_server": "gradients are averaged by all ranks",
    "multi_worker_mirrored_strategy": "Farandole is for torch",
    "pytorchxla": "Farandole is not for XLA",
}


DISTRIBUTIONS = (*_LAUNCHES, *_ELSEWHERE)
"""Keys of the argument."""


def take_distribution(job: SageMakerJob, distribution: Any, path: Path) -> None:
    """Put the argument ``distribution`` into a job; ``path`` is that of its file, for messages.

    Raises:
        InvalidArgument: it has a key that SageMaker does not know, a wrong value, several launches,
            or options of launches none of which is enabled.
        NotSupported: it asks for another kind of training.
    """
    place = f"'{path}'"
    given = object_of(distribution, "distribution", place)
    for kind, why in _ELSEWHERE.items():
        if kind in given and _is_on(given[kind], kind, place):
            raise not_offered(f"the distribution {kind}", why, "use torch_distributed")
    unknown = sorted(str(key) for key in given if key not in DISTRIBUTIONS)
    launches = {kind: given[kind] for kind in _LAUNCHES if kind in given}
    if "smdistributed" in launches:
        parallel = object_of(launches.pop("smdistributed"), "smdistributed", place)
        unknown += sorted(set(parallel) - {"dataparallel", "modelparallel"})
        if "modelparallel" in parallel and _is_on(
            parallel["modelparallel"], "modelparallel", place
        ):
            raise not_offered(
                "the distribution smdistributed.modelparallel",
                "Farandole trains whole models on every rank",
                "use smdistributed.dataparallel",
            )
        if "dataparallel" in parallel:
            launches["smdistributed.dataparallel"] = parallel["dataparallel"]
    chosen = {kind: each for kind, each in launches.items() if _is_on(each, kind, place)}
    unknown += sorted({key for each in chosen.values() for key in each if key not in _OPTIONS})
    if unknown:
        known = (*DISTRIBUTIONS, *_OPTIONS)
        raise unknown_keys(f"distribution: {', '.join(unknown)}", path, known)
    if len(chosen) > 1:
        raise InvalidArgument(
            sentences(
                "sagemaker-distributions",
                f"'{path}' enables the distributions {' and '.join(chosen)}.",
                "each of them starts the ranks, so one of them may be enabled.",
                "set enabled of the others to false.",
            )
        )
    if not chosen:
        _refuse_options_of(launches, path)
        job.ranks_per_host = 1  # as SageMaker does: the script is on its own
        return
    ((kind, options),) = chosen.items()
    if "processes_per_host" in options:
        key = "processes_per_host"
        job.ranks_per_host = integer_of(options[key], key, place, 1, MOST_RANKS)
    if "communication_options" in options:
        job.unused.append("communication_options")
    _take_mpi_options(job, options.get("custom_mpi_options") or "", place)
    if kind == "smdistributed.dataparallel":  # frameworks look here whether to use "smddp"
        parameters = json.dumps({"sagemaker_distributed_dataparallel_enabled": True})
        job.variables.setdefault("SM_FRAMEWORK_PARAMS", parameters)


def unknown_keys(what: str, path: Path, known: tuple[str, ...]) -> InvalidArgument:
    """The error for keys that neither SageMaker nor Farandole knows."""
    return InvalidArgument(
        sentences(
            "sagemaker-key",
            f"'{path}' has {what}.",
            f"Farandole knows only {', '.join(known)}.",
            "correct the name, or remove it.",
        )
    )


def _is_on(options: Any, kind: str, place: str) -> bool:
    """Whether a distribution is enabled: it must say so."""
    key, fix = f"distribution: {kind}", 'write {"enabled": true} to use it'
    if not isinstance(options, dict) or "enabled" not in options:
        raise wrong(key, options, place, "an object with enabled, which is true or false", fix)
    enabled = options["enabled"]
    if not isinstance(enabled, bool):
        raise wrong(f"{key}: enabled", enabled, place, "true or false, without quotes", fix)
    return enabled


def _refuse_options_of(launches: dict[str, dict[str, Any]], path: Path) -> None:
    """None of them is enabled."""
    options = [f"{kind}: {key}" for kind, each in launches.items() for key in each]
    options = [each for each in options if not each.endswith(": enabled")]
    if options:
        raise InvalidArgument(
            sentences(
                "sagemaker-distribution-off",
                f"'{path}' enables no distribution, but has options of one: {', '.join(options)}.",
                "without a distribution there is one rank on each host, and they have no effect.",
                "set enabled to true, or remove them.",
            )
        )


def _take_mpi_options(job: SageMakerJob, given: Any, place: str) -> None:
    """Variables for the ranks, and what mpirun alone knows."""
    try:
        words = shlex.split(given) if isinstance(given, str) else None
    except ValueError:
        words = None
    if words is None:
        needed = "a text with mpirun's options, which is split as in a shell"
        raise wrong("custom_mpi_options", given, place, needed)
    while words:
        word = words.pop(0)
        if word == "-x" and words:
            name, equals, value = words.pop(0).partition("=")
            if equals:
                job.variables[name] = value
            elif name in os.environ:
                job.variables[name] = os.environ[name]
        elif word.lstrip("-") in ("v", "verbose"):
            job.unused.append(word)
        else:
            job.mpi_options.append(word)
