# SPDX-License-Identifier: Apache-2.0
"""The file of `--from-sagemaker`, and the variables of the environment that complete it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from farandole.errors import InvalidArgument, sentences
from farandole.foreign_text import json_of
from farandole.run.hosts import MOST_RANKS
from farandole.run.sagemaker.distribution import take_distribution, unknown_keys
from farandole.run.sagemaker.job import SageMakerJob
from farandole.run.sagemaker.values import (
    argument_of,
    integer_of,
    is_url,
    object_of,
    text_of,
    variable_of,
    wrong,
)
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
_NAMES = 'a JSON list of names, as ["h1", "h2"]'


@dataclass(frozen=True)
class _Description:
    """The file, and variables."""

    path: Path
    entries: dict[str, Any]
    given: dict[str, str]
    """Variables of the file."""
    environment: Mapping[str, str]

    @property
    def place(self) -> str:
        """The file, for messages."""
        return f"'{self.path}'"

    def get(self, key: str, default: Any) -> Any:
        """A value; null stands for one that is left out."""
        found = self.entries.get(key)
        return default if found is None else found

    def variable(self, name: str) -> tuple[str | None, str]:
        """Of the file, else of the environment, and which of them; an empty one is left out."""
        if name in self.given:
            return self.given[name] or None, self.place
        return self.environment.get(name) or None, "the environment"

    def json_variable(self, name: str, default: Any, needed: str) -> Any:
        """What a variable with JSON of the type of ``default`` holds."""
        text, place = self.variable(name)
        if text is None:
            return default
        try:
            found = json_of(text)
        except ValueError:
            found = text
        if not isinstance(found, type(default)):
            raise wrong(name, found, place, needed)
        return found


def read_job(path: Path, environment: Mapping[str, str]) -> SageMakerJob:
    """Read a file.

    Raises:
        InvalidArgument: it cannot be read, has a key that neither SageMaker nor Farandole knows, or
            a wrong value; or a variable has one.
        NotSupported: it asks for another kind of training, or for files of S3.
    """
    entries = _object(path)
    unknown = sorted(
        key
        for key in entries
        if key not in (*KEYS, *KEYS_WITHOUT_EFFECT) and not key.startswith("SM_")
    )
    if unknown:
        raise unknown_keys(", ".join(unknown), path, (*KEYS, *KEYS_WITHOUT_EFFECT, "SM_..."))
    given = {key: variable_of(value) for key, value in entries.items() if key.startswith("SM_")}
    job = SageMakerJob(variables=dict(given))
    beside = path if path.is_file() else Path("job")  # the folder of a pipe is no place for files
    job.output_folder = beside.absolute().with_name(f"{beside.stem}-output")
    job.unused = sorted(key for key in entries if key in KEYS_WITHOUT_EFFECT)
    description = _Description(path, entries, given, environment)
    _take_hosts(job, description)
    _take_program(job, description)
    _take_hyperparameters(job, description)
    take_distribution(job, description.get("distribution", {}), path)
    _take_inputs(job, description)
    added = object_of(description.get("environment", {}), "environment", description.place)
    job.variables |= {name: variable_of(value) for name, value in added.items()}
    return job


def _object(path: Path) -> dict[str, Any]:
    try:
        found = json_of(path.read_text(encoding="utf-8-sig"))
    except (OSError, ValueError) as error:
        raise _unreadable(path, f"{error}") from error
    if not isinstance(found, dict):
        raise _unreadable(path, f"it has a {type(found).__name__}")
    return found


def _take_hosts(job: SageMakerJob, description: _Description) -> None:
    hosts = description.json_variable("SM_HOSTS", [], _NAMES)
    place = description.variable("SM_HOSTS")[1]
    if not all(isinstance(host, str) and host for host in hosts):
        raise wrong("SM_HOSTS", hosts, place, _NAMES)
    count = description.entries.get("instance_count", len(hosts) or 1)
    count = integer_of(count, "instance_count", description.place, 1)
    current, _ = description.variable("SM_CURRENT_HOST")
    if count > 1 and (len(hosts) != count or current not in (None, *hosts)):
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
    gpus = description.json_variable("SM_NUM_GPUS", 0, "an integer, the GPUs of a host")
    place = description.variable("SM_NUM_GPUS")[1]
    job.ranks_per_host = integer_of(gpus, "SM_NUM_GPUS", place, 0, MOST_RANKS) or None


def _take_program(job: SageMakerJob, description: _Description) -> None:
    place = description.place
    source = description.get("source_dir", None)
    if source is not None:
        source = text_of(source, "source_dir", place)
        job.folder = _folder(source, "source_dir", f"the source_dir {source}", place)
    entry = description.get("entry_point", None)
    if entry is None:
        entry, place = description.variable("SM_USER_ENTRY_POINT")
    if entry is not None:
        job.program = str((job.folder or Path()) / text_of(entry, "entry_point", place))


def _take_hyperparameters(job: SageMakerJob, description: _Description) -> None:
    """They become arguments of the program, and variables."""
    found = description.get("hyperparameters", None)
    if found is None:
        found = description.json_variable("SM_HPS", {}, "a JSON object")
    object_of(found, "hyperparameters", description.place)
    for name, value in sorted(found.items()):
        job.arguments += [f"--{name}" if len(name) > 1 else f"-{name}", argument_of(value)]
        job.variables[f"SM_HP_{name.upper().replace('-', '_')}"] = variable_of(value)
    job.variables["SM_HPS"] = variable_of(found)


def _take_inputs(job: SageMakerJob, description: _Description) -> None:
    """Folders of data, by the names of channels."""
    inputs = description.get("inputs", {})
    channels = {"training": inputs} if isinstance(inputs, str) else inputs
    if not isinstance(channels, dict):
        raise wrong("inputs", inputs, description.place, "a folder, or an object of folders")
    for name, value in channels.items():
        key = f"inputs: {name}"
        place = text_of(value, key, description.place)
        folder = _folder(place, key, f"the input {place}", description.place)
        job.variables[f"SM_CHANNEL_{name.upper()}"] = str(folder)
        job.channels.append(name)


def _folder(given: str, key: str, what: str, place: str) -> Path:
    """One of this machine, as an absolute path."""
    path = given.removeprefix("file://")
    if is_url(path):
        raise not_offered(
            what,
            "Farandole reads folders",
            "copy it here first, as by aws s3 sync, and name the folder",
        )
    if not Path(path).is_dir():
        raise wrong(key, given, place, f"a folder, and {Path(path).absolute()} is none")
    return Path(path).absolute()


def _unreadable(path: Path, why: str) -> InvalidArgument:
    return InvalidArgument(
        sentences(
            "sagemaker-file",
            f"the job of SageMaker in '{path}' cannot be read.",
            f"{why}.",
            "write a JSON object with distribution, entry_point, hyperparameters and so on.",
        )
    )
