# SPDX-License-Identifier: Apache-2.0
"""The names by which ranks know parameters."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

from torch import Tensor

from farandole.errors import InvalidArgument, sentences


def names_of(
    groups: Sequence[dict[str, Any]], named: Iterable[tuple[str, Tensor]] | None
) -> dict[Tensor, str]:
    """The name of each parameter of an optimizer's groups; without ``named`` its place there.

    Raises:
        InvalidArgument: a name is there twice, or a parameter has none.
    """
    parameters = [each for group in groups for each in group["params"]]
    if named is None:
        return {
            each: f"parameter.{i}.{j}"
            for i, group in enumerate(groups)
            for j, each in enumerate(group["params"])
        }
    pairs = list(named)
    if any(not isinstance(pair, tuple) or len(pair) != 2 for pair in pairs):
        raise InvalidArgument(
            sentences(
                "named-parameters",
                "the optimizer got named_parameters that are no pairs.",
                "each is a tuple of a name and a parameter.",
                "pass model.named_parameters().",
            )
        )
    twice = [name for name, count in Counter(name for name, _ in pairs).items() if count > 1]
    names = {each: name for name, each in pairs}
    without = sum(each not in names for each in parameters)
    if twice or without:
        raise InvalidArgument(
            sentences(
                "parameter-names",
                f"the optimizer got named_parameters with {len(twice)} names that are there twice "
                f"({', '.join(twice[:4])}), and without {without} of its parameters.",
                "ranks match gradients by the names of parameters.",
                "pass the named_parameters() of all models whose parameters it has, with "
                "different names.",
            )
        )
    return names
