# SPDX-License-Identifier: Apache-2.0
"""The variables of SageMaker's containers, as far as their values are known here."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from farandole.foreign_text import json_of
from farandole.run import cores
from farandole.run.sagemaker.job import SageMakerJob
from farandole.run.sagemaker.values import is_url, variable_of
from farandole.sagemaker.places import writable

_OUTPUTS = ("SM_MODEL_DIR", "SM_OUTPUT_DATA_DIR")
_CHANNEL = "SM_CHANNEL_"
_ALL = "SM_TRAINING_ENV"


def set_container_variables(
    job: SageMakerJob, hosts: list[str], command: list[str], environment: Mapping[str, str]
) -> None:
    """Add to a job's variables those that neither it nor the environment sets.

    Folders for models and output are made, on this host. Their paths and those of channels become
    absolute, because ranks may run in another folder. SM_CURRENT_HOST is left out where mpirun
    starts several hosts: each rank sets its own.

    Args:
        job: As read; changed.
        hosts: All, in order; empty if they are not known.
        command: The program and its arguments.
        environment: Of this process.

    Raises:
        NotSupported: a folder cannot be made.
    """
    given = {name: value for name, value in {**environment, **job.variables}.items() if value}
    defaults = _defaults(job, hosts, command)
    known = {**defaults, **given}
    names = [*defaults, *(name for name in known if name.startswith(_CHANNEL))]
    found = {name: known[name] for name in names}
    for name, place in found.items():
        if name.startswith((*_OUTPUTS, _CHANNEL)) and not is_url(place):
            found[name] = str(Path(place).absolute())
    for name in _OUTPUTS:
        if not is_url(found[name]):
            writable(Path(found[name]), f"set {name} in the environment or in the file")
    all_hosts = _loaded(found.get("SM_HOSTS", ""))
    if isinstance(all_hosts, list) and len(all_hosts) == 1:
        known.setdefault("SM_CURRENT_HOST", str(all_hosts[0]))
    if "SM_CURRENT_HOST" in known:
        found["SM_CURRENT_HOST"] = known["SM_CURRENT_HOST"]
    found[_ALL] = known.get(_ALL) or json.dumps(_described(found, job))
    job.variables |= found


def _defaults(job: SageMakerJob, hosts: list[str], command: list[str]) -> dict[str, str]:
    program, *arguments = command
    path = Path(program).absolute()
    folder = job.folder or path.parent
    values = {
        "SM_NUM_CPUS": cores.usable_cores(),
        "SM_NUM_GPUS": torch.cuda.device_count(),
        "SM_CHANNELS": sorted(job.channels),
        "SM_MODEL_DIR": str(job.output_folder / "model"),
        "SM_OUTPUT_DATA_DIR": str(job.output_folder / "data"),
        "SM_MODULE_DIR": str(folder),
        "SM_USER_ENTRY_POINT": os.path.relpath(path, folder),
        "SM_USER_ARGS": arguments,
    }
    if hosts:
        values["SM_HOSTS"] = hosts
    return {name: variable_of(value) for name, value in values.items()}


def _described(variables: dict[str, str], job: SageMakerJob) -> dict[str, Any]:
    """The value of SM_TRAINING_ENV: the same by other names."""
    channels = {name.upper(): name for name in job.channels}
    found: dict[str, Any] = {"channel_input_dirs": {}}
    for name, text in variables.items():
        channel = name.removeprefix(_CHANNEL)
        if channel != name:
            found["channel_input_dirs"][channels.get(channel, channel.lower())] = text
        else:
            found[name.removeprefix("SM_").lower()] = _loaded(text)
    return {**found, "hyperparameters": _loaded(job.variables["SM_HPS"])}


def _loaded(text: str) -> Any:
    """What JSON is a value of, else the text."""
    try:
        return json_of(text)
    except ValueError:
        return text
