# SPDX-License-Identifier: Apache-2.0
"""`farandole run --from-sagemaker FILE`: what a job of SageMaker asks for, in options of ours.

The file is a JSON object with the arguments of SageMaker's estimator, and beside them any of the
variables SM_... that its containers have. What the file leaves out is taken from the environment.
"""

from __future__ import annotations

import argparse
import json
import os
import shlex
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from farandole.errors import InvalidArgument, sentences
from farandole.sagemaker.absent import not_offered

KEYS = (
    *("distribution", "entry_point", "source_dir", "hyperparameters", "instance_count"),
    *("environment", "inputs"),
)
KEYS_WITHOUT_EFFECT = (
    *("base_job_name", "checkpoint_local_path", "checkpoint_s3_uri", "code_location"),
    *("container_log_level", "debugger_hook_config", "dependencies", "disable_profiler"),
    *("enable_sagemaker_metrics", "framework_version", "image_uri", "instance_type"),
    *("keep_alive_period_in_seconds", "max_run", "max_wait", "metric_definitions", "model_dir"),
    *("output_path", "profiler_config", "py_version", "role", "rules", "sagemaker_session"),
    *("tags", "tensorboard_output_config", "use_spot_instances", "volume_size"),
)
_LAUNCHES = ("smdistributed", "pytorchddp", "torch_distributed", "mpi")
_OPTIONS = ("enabled", "custom_mpi_options", "processes_per_host", "communication_options")
_ELSEWHERE = {
    "parameter_server": "gradients are averaged by all ranks",
    "multi_worker_mirrored_strategy": "Farandole is for torch",
    "pytorchxla": "Farandole is not for XLA",
}


DISTRIBUTIONS = (*_LAUNCHES, *_ELSEWHERE)
"""Keys of the argument ``distribution``."""


@dataclass
class SageMakerJob:
    """What the file and the environment ask for."""

    program: str | None = None
    arguments: list[str] = field(default_factory=list)
    """Of the program, made of hyperparameters."""
    ranks_per_host: int | None = None
    """None: one for each core."""
    hosts: list[str] = field(default_factory=list)
    """All of them, if there are several."""
    current_host: str | None = None
    """This one, where each host runs the command; None: it runs once, and uses mpirun."""
    mpi_options: list[str] = field(default_factory=list)
    variables: dict[str, str] = field(default_factory=dict)
    """For the ranks."""
    unused: list[str] = field(default_factory=list)
    """What has no effect, to be named."""


def read_job(path: Path, environment: Mapping[str, str]) -> SageMakerJob:
    """Read a file.

    Raises:
        InvalidArgument: it cannot be read, or has a key that neither SageMaker nor Farandole knows.
        NotSupported: it asks for another kind of training, or for files of S3.
    """
    description = _object(path)
    try:
        return _job_of(description, path, environment)
    except (ValueError, TypeError, AttributeError) as error:
        if isinstance(error, InvalidArgument):
            raise
        raise _unreadable(path, f"{type(error).__name__}: {error}") from error


def _job_of(
    description: dict[str, Any], path: Path, environment: Mapping[str, str]
) -> SageMakerJob:
    unknown = sorted(
        key
        for key in description
        if key not in (*KEYS, *KEYS_WITHOUT_EFFECT) and not key.startswith("SM_")
    )
    if unknown:
        raise _unknown(", ".join(unknown), path, (*KEYS, *KEYS_WITHOUT_EFFECT, "SM_..."))
    given = {key: _text(value) for key, value in description.items() if key.startswith("SM_")}
    job = SageMakerJob(variables=given)
    job.unused = sorted(key for key in description if key in KEYS_WITHOUT_EFFECT)
    _take_hosts(job, description, {**environment, **given})
    _take_program(job, description, {**environment, **given})
    take_distribution(job, description.get("distribution") or {}, path)
    _take_inputs(job, description.get("inputs") or {})
    job.variables |= {name: _text(value) for name, value in _map(description, "environment")}
    return job


def apply_job(options: argparse.Namespace, job: SageMakerJob) -> None:
    """Put a job into the options of `farandole run`; those that the user has given count."""
    has_hosts = options.hosts is not None or options.hostfile is not None
    if options.ranks is None and job.ranks_per_host is not None and not has_hosts:
        options.ranks = str(job.ranks_per_host)
    if not options.program and job.program is None:
        raise InvalidArgument(
            sentences(
                "sagemaker-program",
                "farandole run got no program.",
                "neither the command line names one, nor the file of --from-sagemaker.",
                "write entry_point into the file, or put the script behind the options.",
            )
        )
    options.program = [*(options.program or [job.program]), *job.arguments]
    if not job.hosts or has_hosts or options.nnodes is not None:
        _refuse_mpi_options(job, has_hosts)
    elif job.current_host is not None:
        _refuse_mpi_options(job, False)
        options.nnodes = str(len(job.hosts))
        options.node_rank = str(job.hosts.index(job.current_host))
        options.master_addr = options.master_addr or job.hosts[0]
    else:
        each = "" if options.ranks is None else f":{options.ranks}"
        options.hosts = ",".join(f"{host}{each}" for host in job.hosts)
        options.ranks = None
    if job.mpi_options:
        options.mpirun_args = f"{options.mpirun_args} {shlex.join(job.mpi_options)}".strip()


def _refuse_mpi_options(job: SageMakerJob, uses_mpirun: bool) -> None:
    if job.mpi_options and not uses_mpirun:
        raise InvalidArgument(
            sentences(
                "sagemaker-mpi-options",
                f"custom_mpi_options has {shlex.join(job.mpi_options)}.",
                "torchrun starts these ranks; of mpirun's options it has -x NAME=VALUE alone.",
                "leave them out; or leave SM_CURRENT_HOST out, and mpirun starts all hosts.",
            )
        )


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text())
    except (OSError, ValueError) as error:
        raise _unreadable(path, f"{error}") from error
    if not isinstance(found, dict):
        raise _unreadable(path, f"it has a {type(found).__name__}")
    return found


def _take_hosts(
    job: SageMakerJob, description: dict[str, Any], variables: Mapping[str, str]
) -> None:
    hosts = [str(host) for host in _json(variables, "SM_HOSTS", [])]
    count = int(description.get("instance_count", len(hosts) or 1))
    current = variables.get("SM_CURRENT_HOST")
    is_named = len(hosts) == count and current in (None, *hosts)
    if count < 1 or (count > 1 and not is_named):
        raise InvalidArgument(
            sentences(
                "sagemaker-hosts",
                f"a job of {count} hosts has SM_HOSTS={hosts} and SM_CURRENT_HOST={current}.",
                "each host must be named, and SM_CURRENT_HOST, if it is set, must be one of them.",
                'write "SM_HOSTS": ["h1", "h2"] into the file; on each host set SM_CURRENT_HOST, '
                "or set it nowhere and start all by mpirun from one host.",
            )
        )
    if count > 1:
        job.hosts, job.current_host = hosts, current
    gpus = int(variables.get("SM_NUM_GPUS") or 0)
    job.ranks_per_host = gpus or None


def _take_program(
    job: SageMakerJob, description: dict[str, Any], variables: Mapping[str, str]
) -> None:
    entry = description.get("entry_point") or variables.get("SM_USER_ENTRY_POINT")
    if entry:
        job.program = str(Path(description.get("source_dir") or ".") / entry)
    hyperparameters = description.get("hyperparameters") or _json(variables, "SM_HPS", {})
    for name, value in sorted(hyperparameters.items()):
        text = _text(value)
        job.arguments += [f"--{name}" if len(name) > 1 else f"-{name}", text]
        job.variables[f"SM_HP_{name.upper().replace('-', '_')}"] = text
    job.variables.setdefault("SM_HPS", json.dumps(hyperparameters))


def take_distribution(job: SageMakerJob, distribution: dict[str, Any], path: Path) -> None:
    """Put the argument ``distribution`` into a job; ``path`` is that of its file, for messages.

    Raises:
        InvalidArgument: it has a key that SageMaker does not know, or several launches.
        NotSupported: it asks for another kind of training.
    """
    for kind, why in _ELSEWHERE.items():
        if _is_on(distribution.get(kind)):
            raise not_offered(f"the distribution {kind}", why, "use torch_distributed")
    unknown = sorted(set(distribution) - {*_LAUNCHES, *_ELSEWHERE})
    launches = {kind: distribution[kind] for kind in _LAUNCHES if kind in distribution}
    if "smdistributed" in launches:
        parallel = launches["smdistributed"]
        if _is_on(parallel.get("modelparallel")):
            raise not_offered(
                "the distribution smdistributed.modelparallel",
                "Farandole trains whole models on every rank",
                "use smdistributed.dataparallel",
            )
        unknown += sorted(set(parallel) - {"dataparallel", "modelparallel"})
        launches["smdistributed"] = parallel.get("dataparallel") or {}
    chosen = {kind: each for kind, each in launches.items() if _is_on(each)}
    unknown += sorted({key for each in chosen.values() for key in each if key not in _OPTIONS})
    if unknown or len(chosen) > 1:
        what = ", ".join(unknown) if unknown else " and ".join(chosen)
        raise _unknown(f"distribution: {what}", path, (*_LAUNCHES, *_OPTIONS))
    if not chosen:
        job.ranks_per_host = 1  # as SageMaker does: the script is on its own
        return
    ((kind, options),) = chosen.items()
    job.ranks_per_host = options.get("processes_per_host", job.ranks_per_host)
    if "communication_options" in options:
        job.unused.append("communication_options")
    _take_mpi_options(job, options.get("custom_mpi_options") or "")
    if kind == "smdistributed":  # frameworks look here whether to use the backend "smddp"
        parameters = json.dumps({"sagemaker_distributed_dataparallel_enabled": True})
        job.variables.setdefault("SM_FRAMEWORK_PARAMS", parameters)


def _take_mpi_options(job: SageMakerJob, text: str) -> None:
    """Variables for the ranks, and what mpirun alone knows."""
    words = shlex.split(text)
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


def _take_inputs(job: SageMakerJob, inputs: dict[str, str] | str) -> None:
    """Folders of data, by the names of channels."""
    channels = {"training": inputs} if isinstance(inputs, str) else inputs
    for name, place in channels.items():
        if place.startswith("s3://"):
            raise not_offered(
                f"the input {place}",
                "Farandole reads folders",
                "copy it here first, as by aws s3 sync, and name the folder",
            )
        folder = str(Path(place.removeprefix("file://")).absolute())
        job.variables[f"SM_CHANNEL_{name.upper()}"] = folder


def _map(description: dict[str, Any], key: str) -> list[tuple[str, Any]]:
    return list((description.get(key) or {}).items())


def _json(variables: Mapping[str, str], name: str, default: Any) -> Any:
    try:
        return json.loads(variables[name]) if variables.get(name) else default
    except ValueError as error:
        raise _unreadable(Path(name), f"{error}") from error


def _text(value: Any) -> str:
    """As SageMaker gives it to a script."""
    return value if isinstance(value, str) else json.dumps(value)


def _is_on(options: Any) -> bool:
    return isinstance(options, dict) and str(options.get("enabled", False)).lower() == "true"


def _unreadable(path: Path, why: str) -> InvalidArgument:
    return InvalidArgument(
        sentences(
            "sagemaker-file",
            f"the job of SageMaker in '{path}' cannot be read.",
            f"{why}.",
            "write a JSON object with distribution, entry_point, hyperparameters and so on.",
        )
    )


def _unknown(what: str, path: Path, known: tuple[str, ...]) -> InvalidArgument:
    return InvalidArgument(
        sentences(
            "sagemaker-key",
            f"'{path}' has {what}.",
            f"together, or at all, Farandole knows only {', '.join(known)}.",
            "correct the name, or remove it.",
        )
    )
