# SPDX-License-Identifier: Apache-2.0
"""--config-file of horovodrun: flags as YAML, in sections."""

from __future__ import annotations

import difflib
import importlib
import math
from pathlib import Path
from typing import Any

from farandole.errors import InvalidArgument, NotSupported, sentences
from farandole.foreign_text import shown
from farandole.horovod.flags import Flags, make_parser

_SECTIONS: dict[str, dict[str, str]] = {
    "params": {
        "fusion_threshold_mb": "--fusion-threshold-mb",
        "cycle_time_ms": "--cycle-time-ms",
        "cache_capacity": "--cache-capacity",
        "hierarchical_allreduce": "--hierarchical-allreduce",
        "hierarchical_allgather": "--hierarchical-allgather",
        "torus_allreduce": "--torus-allreduce",
    },
    "autotune": {
        "enabled": "--autotune",
        "log_file": "--autotune-log-file",
        "warmup_samples": "--autotune-warmup-samples",
        "steps_per_sample": "--autotune-steps-per-sample",
        "bayes_opt_max_samples": "--autotune-bayes-opt-max-samples",
        "gaussian_process_noise": "--autotune-gaussian-process-noise",
    },
    "timeline": {"filename": "--timeline-filename", "mark_cycles": "--timeline-mark-cycles"},
    "stall_check": {
        "enabled": "--stall-check",
        "warning_time_seconds": "--stall-check-warning-time-seconds",
        "shutdown_time_seconds": "--stall-check-shutdown-time-seconds",
    },
    "library_options": {
        "mpi_threads_disable": "--mpi-threads-disable",
        "num_nccl_streams": "--num-nccl-streams",
        "thread_affinity": "--thread-affinity",
        "gloo_timeout_seconds": "--gloo-timeout-seconds",
    },
    "logging": {
        "level": "--log-level",
        "with_timestamp": "--log-with-timestamp",
        "hide_timestamp": "--log-hide-timestamp",
    },
}
_CONTROLLERS = {"gloo": "--gloo", "mpi": "--mpi"}
_NEGATIVE = {"--stall-check": "--no-stall-check"}
"""What a key becomes that is false; others are as if they were not there."""


def fill_in(flags: Flags, path: Path, version: str) -> None:
    """Take from the file what was not given.

    Raises:
        InvalidArgument: it cannot be read, or has an unknown key or a wrong value.
        NotSupported: PyYAML is missing.
    """
    parser = make_parser(version)
    switches = {name for each in parser._actions if each.nargs == 0 for name in each.option_strings}
    arguments = _arguments_of(_read(path), path, switches)
    try:
        found = parser.parse_args(arguments, Flags())
    except InvalidArgument as error:
        raise _wrong(path, str(error).partition("\n")[0]) from error
    for name, value in vars(found).items():
        if name not in vars(flags):
            setattr(flags, name, value)


def _read(path: Path) -> dict[str, Any]:
    try:
        yaml: Any = importlib.import_module("yaml")
    except ImportError as error:
        raise NotSupported(
            sentences(
                "horovodrun-yaml",
                f"horovodrun was asked to read {path}.",
                "that is YAML, and PyYAML is not installed.",
                "pip install pyyaml, or pass the flags themselves.",
            )
        ) from error
    try:
        found = yaml.safe_load(path.read_text())
    except RecursionError as error:
        raise _wrong(path, "it is nested too deeply.") from error
    except (OSError, ValueError, yaml.YAMLError) as error:
        raise _wrong(path, f"it cannot be read: {' '.join(str(error).split())}.") from error
    if not isinstance(found, dict):
        raise _wrong(path, "it has no sections.")
    return found


def _arguments_of(config: dict[str, Any], path: Path, switches: set[str]) -> list[str]:
    arguments: list[str] = []
    for section, keys in config.items():
        if section == "controller":
            arguments.append(_one_of(_CONTROLLERS, str(keys).lower(), "controller", path))
            continue
        known = _one_of(_SECTIONS, section, "section", path)
        if not isinstance(keys, (dict, type(None))):
            raise _wrong(path, f"it has no keys in {section}.")
        for key, value in (keys or {}).items():
            flag = _one_of(known, key, f"key of {section}", path)
            if flag in switches and not isinstance(value, (bool, type(None))):
                raise _wrong(path, f"{section}.{key} is {value!r}, and takes true or false.")
            if reason := _why_no_argument(value):
                raise _wrong(path, f"{section}.{key} is {reason}.")
            arguments += _argument(flag, value)
    return arguments


def _why_no_argument(value: Any) -> str:
    """Why it cannot be that of a flag; "" if it can."""
    if not isinstance(value, (str, bool, int, float, type(None))):
        return f"a {type(value).__name__}, but takes one value"
    if isinstance(value, float) and not math.isfinite(value):
        return f"{value}, but takes finite numbers"
    if isinstance(value, str) and shown(value) != value:
        return f"'{shown(value)}', but takes text without control characters"
    return ""


def _argument(flag: str, value: Any) -> list[str]:
    if value is None:
        return []
    if isinstance(value, bool):
        return [flag] if value else [_NEGATIVE[flag]] if flag in _NEGATIVE else []
    return [f"{flag}={value}"]


def _one_of(known: dict[str, Any], name: str, what: str, path: Path) -> Any:
    if name in known:
        return known[name]
    near = difflib.get_close_matches(str(name), known, n=1)
    hint = f"; did you mean {near[0]}?" if near else ""
    raise _wrong(path, f"it has the {what} '{name}', which Horovod has not{hint}.")


def _wrong(path: Path, why: str) -> InvalidArgument:
    return InvalidArgument(
        sentences(
            "horovodrun-config-file",
            f"horovodrun cannot take the flags in {path}.",
            why,
            "correct the file; its sections are params, autotune, timeline, stall_check, "
            "library_options, logging and controller.",
        )
    )
