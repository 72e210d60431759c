# SPDX-License-Identifier: Apache-2.0
"""What torch keeps in an optimizer's param_groups beside the parameters."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch

Group = dict[str, Any]

_NOT_HYPERPARAMETERS = ("params", "param_names")


def hyperparameters(group: Group) -> Group:
    """All but the parameters and their names."""
    return {key: value for key, value in group.items() if key not in _NOT_HYPERPARAMETERS}


def names_of(groups: Sequence[Group], index: int) -> list[str]:
    """What errors call the parameters of a group: their names, or else where they are."""
    group = groups[index]
    if "param_names" in group:
        return list(group["param_names"])
    return [f"param_groups[{index}]['params'][{i}]" for i in range(len(group["params"]))]


def describe(name: str, groups: Sequence[Group], keys: Sequence[str]) -> str:
    """The optimizer called ``name`` with the values of ``keys``, the same text on equal ranks."""
    texts = []
    for group in groups:
        values = [f"{key}={_text(group[key])}" for key in keys if key in group]
        texts.append(f"{name}({', '.join(values)})")
    return "; ".join(texts)


def _text(value: object) -> str:
    """Without addresses, which differ between ranks."""
    if isinstance(value, torch.Tensor):
        return repr(value.tolist())
    if isinstance(value, tuple | list):
        return f"({', '.join(map(_text, value))})"
    if value is None or isinstance(value, bool | int | float | complex | str):
        return repr(value)
    return type(value).__qualname__
