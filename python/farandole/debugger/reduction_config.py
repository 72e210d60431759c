# SPDX-License-Identifier: Apache-2.0
"""Which numbers are saved of a tensor."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any

from farandole.debugger import config_json
from farandole.errors import InvalidArgument, sentences

REDUCTIONS = ("min", "max", "mean", "std", "variance", "sum", "prod")
NORMS = ("l1", "l2")


def check_names(names: Iterable[str], known: Sequence[str]) -> None:
    """Raise InvalidArgument if one of ``names`` is not among ``known``."""
    for name in names:
        if name not in known:
            raise InvalidArgument(
                sentences(
                    "debugger-reduction",
                    f"the debugger was asked for the reduction {name!r}.",
                    f"it knows {', '.join(known)} here.",
                    "ask for one of them, or set save_raw_tensor=True to have all elements.",
                )
            )


@dataclass(frozen=True)
class ReductionConfig:
    """The reductions of a tensor, and whether all its elements are saved too.

    ``abs_reductions`` and ``abs_norms`` are those of absolute values. ``save_shape`` is without
    effect: the shape is always saved.
    """

    reductions: Sequence[str] = ()
    abs_reductions: Sequence[str] = ()
    norms: Sequence[str] = ()
    abs_norms: Sequence[str] = ()
    save_raw_tensor: bool = False
    save_shape: bool = False

    def __post_init__(self) -> None:
        check_names((*self.reductions, *self.abs_reductions), REDUCTIONS)
        check_names((*self.norms, *self.abs_norms), NORMS)

    @classmethod
    def of_list(cls, names: Iterable[str], save_raw_tensor: bool = False) -> ReductionConfig:
        """A config of names as they stand in JSON: ``min``, ``abs_mean``, ``l2_norm``."""
        plain = [name.removesuffix("_norm") for name in names]
        of_values = [name for name in plain if not name.startswith("abs_")]
        of_abs = [name.removeprefix("abs_") for name in plain if name.startswith("abs_")]
        return cls(
            [name for name in of_values if name not in NORMS],
            [name for name in of_abs if name not in NORMS],
            [name for name in of_values if name in NORMS],
            [name for name in of_abs if name in NORMS],
            save_raw_tensor,
        )

    @classmethod
    def from_dict(cls, params: Mapping[str, Any]) -> ReductionConfig:
        """A config of its arguments, as to_json_dict() has them.

        Raises:
            InvalidArgument: ``params`` has other keys, or reductions that there are not.
        """
        names = [field.name for field in fields(cls)]
        return cls(**config_json.checked(cls.__name__, params, names))

    @classmethod
    def from_json(cls, text: str) -> ReductionConfig:
        """A config of what to_json() has returned; raises as from_dict()."""
        return cls.from_dict(config_json.object_of(cls.__name__, text))

    def to_json_dict(self) -> dict[str, Any]:
        """Its arguments by their names."""
        return {
            name: value if isinstance(value, bool) else list(value)
            for name, value in asdict(self).items()
        }

    def to_json(self) -> str:
        """The same as text."""
        return json.dumps(self.to_json_dict())

    def keys(self) -> set[str]:
        """The names of what is saved, ``abs_`` before those of absolute values."""
        of_abs = (*self.abs_reductions, *self.abs_norms)
        return {*self.reductions, *self.norms, *(f"abs_{name}" for name in of_abs)}


DEFAULT = ReductionConfig(["min", "max", "mean", "std"], ["mean"], ["l2"])
"""What is saved of a tensor if nothing else is asked for."""
WITH_ELEMENTS = ReductionConfig(
    DEFAULT.reductions, DEFAULT.abs_reductions, DEFAULT.norms, save_raw_tensor=True
)
