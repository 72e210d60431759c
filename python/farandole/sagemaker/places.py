# SPDX-License-Identifier: Apache-2.0
"""Where SageMaker's containers have configurations and outputs, and variables that move them."""

from __future__ import annotations

import json
import os
from pathlib import Path

from farandole.errors import InvalidArgument, NotSupported, sentences
from farandole.sagemaker.absent import not_offered

PROFILER_CONFIG = "SMPROFILER_CONFIG_FILE_PATH"
DEBUGGER_CONFIG = "SMDEBUG_CONFIG_FILE_PATH"
TENSORS = Path("/opt/ml/output/tensors")
_PROFILER = Path("/opt/ml/output/profiler")
_CONFIGS = Path("/opt/ml/input/config")


def is_sagemaker_job() -> bool:
    """Whether this is a training job of SageMaker."""
    return "TRAINING_JOB_NAME" in os.environ


def debugger_config() -> Path:
    """The file that configures a hook; it need not exist."""
    return Path(os.environ.get(DEBUGGER_CONFIG, _CONFIGS / "debughookconfig.json"))


def profiler_folder() -> Path:
    """Where profiles go: what the profiler's configuration has as LocalPath, or the default.

    Raises:
        InvalidArgument: the configuration is not JSON.
    """
    path = Path(os.environ.get(PROFILER_CONFIG, _CONFIGS / "profilerconfig.json"))
    if not path.is_file():
        return _PROFILER
    try:
        found = json.loads(path.read_text()).get("LocalPath")
        return Path(found or _PROFILER)
    except (OSError, ValueError, AttributeError, TypeError) as error:
        raise InvalidArgument(
            sentences(
                "sagemaker-profiler-config",
                f"'{path}' does not configure a profiler.",
                f"{type(error).__name__}: {error}.",
                f"write a JSON object with LocalPath there, or unset {PROFILER_CONFIG}.",
            )
        ) from error


def refuse_s3(path: str | os.PathLike[str], why: str, instead: str) -> None:
    """Raise for a path of S3, which would otherwise be the name of a folder here.

    Args:
        path: Any.
        why: It is not offered; half a sentence.
        instead: What to do; half a sentence.

    Raises:
        NotSupported: it is one of S3.
    """
    text = os.fspath(path)
    if text.startswith(("s3://", "https://s3")):
        raise not_offered(f"the path {text!r}", why, f"{instead}, or mount the bucket")


def writable(folder: Path, native: str) -> Path:
    """The same folder, which exists from now on.

    Args:
        folder: For outputs.
        native: How the folder is chosen natively; part of the error's text.

    Raises:
        NotSupported: it cannot be made or written.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
        if not os.access(folder, os.W_OK | os.X_OK):
            raise PermissionError("it is not writable")
    except OSError as error:
        raise NotSupported(
            sentences(
                "sagemaker-folder",
                f"the output cannot go into '{folder}'.",
                f"scripts of SageMaker write there, and here: {error}.",
                f"make the folder writable, or choose another one: {native}.",
            )
        ) from error
    return folder
