# SPDX-License-Identifier: Apache-2.0
"""Arguments of SageMaker's estimators, in scripts that start jobs.

``farandole run --from-sagemaker FILE`` takes the same arguments from a file.
"""

from __future__ import annotations

import ast
import difflib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from farandole.errors import Error
from farandole.migrate.answer import Answer, Verdict, refusal
from farandole.migrate.python_names import Names
from farandole.run import sagemaker

_DISTRIBUTIONS = ("distribution", "distributions")
_IN_FILE = ("here", "farandole run --from-sagemaker FILE takes it from a file of JSON")
_FORM = ("fix", 'for several ranks write {"torch_distributed": {"enabled": True}}')
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
                    yield from _arguments(name, node, path)
        for name, value in _named(node):
            if name in _DISTRIBUTIONS and _is_of_sagemaker(value):
                yield from _distribution(name, value, path)


def _named(node: ast.AST) -> Iterator[tuple[str, ast.expr]]:
    """Values that get a name: arguments of calls, and variables."""
    if isinstance(node, ast.keyword) and node.arg is not None:
        yield node.arg, node.value
    elif isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Name):
                yield target.id, node.value


def _arguments(estimator: str, node: ast.Call, path: Path) -> Iterator[tuple[int, str, Answer]]:
    for keyword in node.keywords:
        if keyword.arg is not None:
            text = f"{estimator}({keyword.arg})"
            yield keyword.value.lineno, text, _of_argument(keyword.arg)
            is_other = _is_literal(keyword.value) and not _is_of_sagemaker(keyword.value)
            if keyword.arg in _DISTRIBUTIONS and is_other:
                yield from _distribution(keyword.arg, keyword.value, path)


def _of_argument(name: str) -> Answer:
    if name in _OLD_NAMES:
        return Answer(Verdict.DIFFERS, (("here", f"its name is {_OLD_NAMES[name]}"), _IN_FILE))
    if name in sagemaker.KEYS:
        return Answer(Verdict.WORKS, (_IN_FILE,))
    if name in sagemaker.KEYS_WITHOUT_EFFECT:
        return Answer(Verdict.DIFFERS, (("here", "it has no effect"),))
    near = difflib.get_close_matches(name, sagemaker.KEYS + sagemaker.KEYS_WITHOUT_EFFECT, n=1)
    return Answer(Verdict.UNKNOWN, (("nearest", near[0]),) if near else ())


def _is_of_sagemaker(node: ast.expr) -> bool:
    """Whether it is a dictionary with one of SageMaker's keys; others are of other libraries."""
    keys = node.keys if isinstance(node, ast.Dict) else []
    return any(
        isinstance(key, ast.Constant) and key.value in sagemaker.DISTRIBUTIONS for key in keys
    )


def _is_literal(node: ast.expr) -> bool:
    """None of it is computed, and it is not None, which stands for no distribution."""
    try:
        return ast.literal_eval(node) is not None
    except ValueError:
        return False


def _distribution(name: str, node: ast.expr, path: Path) -> Iterator[tuple[int, str, Answer]]:
    if _is_literal(node):
        answer = _of_distribution(ast.literal_eval(node), path)
    else:
        notes = (_IN_FILE, ("note", "its values are computed when the script runs"))
        answer = Answer(Verdict.DIFFERS, notes)
    if name in _OLD_NAMES and answer.is_good:
        told = ("here", f"its name is {_OLD_NAMES[name]}")
        answer = Answer(Verdict.DIFFERS, (told, *answer.notes))
    yield node.lineno, f"{name}={ast.unparse(node)}", answer


def _of_distribution(distribution: Any, path: Path) -> Answer:
    """By what ``farandole run --from-sagemaker`` says of it."""
    job = sagemaker.SageMakerJob()
    try:
        sagemaker.take_distribution(job, distribution, path)
        ranks = job.ranks_per_host
        is_several = ranks is None or ranks > 1
    except Error as error:
        return refusal(error)
    if not is_several:
        notes = (_IN_FILE, ("here", f"ranks on each host: {ranks}"), _FORM)
        return Answer(Verdict.DIFFERS, notes)
    if job.unused:
        text = f"without effect: {', '.join(job.unused)}"
        return Answer(Verdict.DIFFERS, (_IN_FILE, ("here", text)))
    return Answer(Verdict.WORKS, (_IN_FILE,))
