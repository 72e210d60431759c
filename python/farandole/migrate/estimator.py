# SPDX-License-Identifier: Apache-2.0
"""Arguments of SageMaker's estimators, in scripts that start jobs.

``farandole run --from-sagemaker FILE`` takes the same arguments from a file.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from pathlib import Path

from farandole.errors import Error
from farandole.migrate.answer import Answer, Verdict
from farandole.migrate.python_names import Names
from farandole.run import sagemaker

_DISTRIBUTIONS = ("distribution", "distributions")
_IN_FILE = ("here", "farandole run --from-sagemaker FILE takes it from a file of JSON")
_OLD_NAMES = {
    "distributions": "distribution",
    "train_instance_count": "instance_count",
    "train_instance_type": "instance_type",
    "train_max_run": "max_run",
    "train_max_wait": "max_wait",
    "train_use_spot_instances": "use_spot_instances",
    "train_volume_size": "volume_size",
    "image_name": "image_uri",
}
"""Of SageMaker's SDK 1, and what SDK 2 and the file call it."""


def answers_of_estimators(
    tree: ast.AST, names: Names, path: Path
) -> Iterator[tuple[int, str, Answer]]:
    """Lines, what stands there, and what it gets."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            for name in names.meanings(node.func):
                if name.startswith("sagemaker.") and name.endswith((".PyTorch", ".Estimator")):
                    yield from _arguments(name, node)
        if isinstance(node, ast.keyword) and node.arg in _DISTRIBUTIONS:
            yield from _distribution(node.arg, node.value, path)
        elif isinstance(node, ast.Assign):
            for target in node.targets:
                if isinstance(target, ast.Name) and target.id in _DISTRIBUTIONS:
                    yield from _distribution(target.id, node.value, path)


def _arguments(estimator: str, node: ast.Call) -> Iterator[tuple[int, str, Answer]]:
    for keyword in node.keywords:
        if keyword.arg is not None:
            text = f"{estimator}({keyword.arg})"
            yield keyword.value.lineno, text, _of_argument(keyword.arg)


def _of_argument(name: str) -> Answer:
    if name in _OLD_NAMES:
        return Answer(Verdict.DIFFERS, (("here", f"its name is {_OLD_NAMES[name]}"), _IN_FILE))
    if name in sagemaker.KEYS:
        return Answer(Verdict.WORKS, (_IN_FILE,))
    if name in sagemaker.KEYS_WITHOUT_EFFECT:
        return Answer(Verdict.DIFFERS, (("here", "it has no effect"),))
    near = difflib.get_close_matches(name, sagemaker.KEYS + sagemaker.KEYS_WITHOUT_EFFECT, n=1)
    return Answer(Verdict.UNKNOWN, (("nearest", near[0]),) if near else ())


def _distribution(name: str, node: ast.expr, path: Path) -> Iterator[tuple[int, str, Answer]]:
    """Of a dictionary with one of SageMaker's keys; others are of other libraries."""
    if not isinstance(node, ast.Dict):
        return
    keys = [key.value for key in node.keys if isinstance(key, ast.Constant)]
    if not any(key in sagemaker.DISTRIBUTIONS for key in keys):
        return
    try:
        value = ast.literal_eval(node)
    except ValueError:
        notes = (_IN_FILE, ("note", "its values are computed when the script runs"))
        answer = Answer(Verdict.DIFFERS, notes)
    else:
        answer = _of_distribution(value, path)
    yield node.lineno, f"{name}={ast.unparse(node)}", answer


def _of_distribution(distribution: dict[str, object], path: Path) -> Answer:
    job = sagemaker.SageMakerJob()
    try:
        sagemaker.take_distribution(job, distribution, path)
    except Error as error:
        _, why, fix = str(error).partition(" [sagemaker")[0].split("\n")
        labels = (("why", why.removeprefix("why: ")), ("fix", fix.removeprefix("fix: ")))
        return Answer(Verdict.REFUSED, labels)
    if job.unused:
        text = f"without effect: {', '.join(job.unused)}"
        return Answer(Verdict.DIFFERS, (_IN_FILE, ("here", text)))
    return Answer(Verdict.WORKS, (_IN_FILE,))
