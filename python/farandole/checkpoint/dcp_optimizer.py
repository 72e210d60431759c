# SPDX-License-Identifier: Apache-2.0
"""The state of an optimizer as torch.distributed.checkpoint has it, in the names of ours.

It is there as get_optimizer_state_dict() returns it, by names of parameters, also with
flatten_optimizer_state_dict=True, or as the optimizer's own state_dict(), by numbers.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from farandole.checkpoint import tree
from farandole.checkpoint.dcp_folder import DcpFolder
from farandole.checkpoint.dcp_tree import EncodedTree
from farandole.errors import CheckpointError, sentences

Group = dict[str, Any]


class DcpOptimizer:
    """One optimizer."""

    def __init__(self, folder: DcpFolder, prefix: str) -> None:
        """Read its groups, which are below a prefix."""
        self._folder = folder
        self._prefix = prefix
        self._keys = [key for key in folder.keys if key.startswith(prefix)]
        self.has_numbers = False
        """In place of the names of parameters, which may be "0" and "1", too."""
        self._groups = self._read_groups()

    def described(
        self,
        own_names: Sequence[Sequence[str]],
        others: Mapping[str, Sequence[str]],
        encoded: EncodedTree,
    ) -> dict[str, Any]:
        """As the index of a checkpoint has an optimizer.

        Args:
            own_names: By group: what the parameters are called in checkpoints.
            others: By such a name: all that the parameter may be called in the folder.
            encoded: Takes tensors.

        Raises:
            CheckpointError: numbers in place of names, and other numbers of parameters.
        """
        renamed = self._renamed(own_names, others)
        groups = [
            {
                "params": [renamed.get(name, name) for name in group["params"]],
                "hyperparameters": tree.encode(
                    {key: value for key, value in group.items() if key != "params"}, "param_groups"
                ),
            }
            for group in self._groups
        ]
        return {"class": None, "groups": _merged(groups), "states": self._states(renamed, encoded)}

    def _read_groups(self) -> list[Group]:
        start = f"{self._prefix}param_groups"
        if start in self._folder.objects:  # as it was saved before torch 2.4
            value = self._folder.value(start)
            if not (isinstance(value, list) and all(isinstance(each, dict) for each in value)):
                raise self._folder.damaged(start, "it is no list of groups")
            groups: list[Group] = [dict(each) for each in value]
        elif f"{start}.0.params" in self._folder.objects:
            groups = self._read_nested(f"{start}.")
        else:
            groups = self._read_flattened(f"{start}.")
        for group in groups:
            parameters = group.get("params", [])
            if not isinstance(parameters, list | tuple):
                raise self._folder.damaged(start, "a group has no list of parameters")
            self.has_numbers |= any(isinstance(each, int) for each in parameters)
            group["params"] = [str(each) for each in parameters]
            group.pop("param_names", None)
        return groups

    def _read_nested(self, start: str) -> list[Group]:
        """param_groups.<number>.<hyperparameter>."""
        groups: dict[int, Group] = {}
        for key in self._keys:
            if key.startswith(start):
                number, _, name = key.removeprefix(start).partition(".")
                if not number.isdecimal():
                    raise self._folder.damaged(key, f"groups have numbers, and {number!r} is none")
                groups.setdefault(int(number), {})[name] = self._folder.value(key)
        return [group for _, group in sorted(groups.items())]

    def _read_flattened(self, start: str) -> list[Group]:
        """param_groups.<parameter>.<hyperparameter>."""
        groups: dict[str, Group] = {}
        for key in self._keys:
            if key.startswith(start):
                parameter, _, name = key.removeprefix(start).rpartition(".")
                group = groups.setdefault(parameter, {"params": [parameter]})
                group[name] = self._folder.value(key)
        return list(groups.values())

    def _renamed(
        self, own_names: Sequence[Sequence[str]], others: Mapping[str, Sequence[str]]
    ) -> dict[str, str]:
        """Our name of each parameter in the folder."""
        if self.has_numbers:
            return self._by_number(own_names)
        there = {name for group in self._groups for name in group["params"]}
        renamed = {}
        for name in (each for names in own_names for each in names):
            for other in (name, *others.get(name, ())):
                if other in there:
                    renamed[other] = name
                    break
        return renamed

    def _by_number(self, own_names: Sequence[Sequence[str]]) -> dict[str, str]:
        saved = [len(group["params"]) for group in self._groups]
        own = [len(names) for names in own_names]
        if saved != own:
            raise CheckpointError(
                sentences(
                    "checkpoint-dcp-numbers",
                    f"the checkpoint at '{self._folder.folder}' has an optimizer with groups of "
                    f"{saved} parameters.",
                    f"the one to load into has groups of {own}; the checkpoint has "
                    "numbers in place of their names.",
                    "make the optimizer with the groups that were saved, in the same order.",
                )
            )
        return {
            number: name
            for group, names in zip(self._groups, own_names, strict=True)
            for number, name in zip(group["params"], names, strict=True)
        }

    def _states(self, renamed: Mapping[str, str], encoded: EncodedTree) -> dict[str, Any]:
        start = f"{self._prefix}state."
        keys: dict[str, list[str]] = {}
        for key in self._keys:
            if key.startswith(start):
                rest = key.removeprefix(start)
                parameter = _longest_start(rest, renamed)
                if parameter is not None:
                    keys.setdefault(parameter, []).append(key)
        return {
            renamed[parameter]: encoded.of(several, f"{start}{parameter}.", renamed[parameter])
            for parameter, several in keys.items()
        }


def _longest_start(rest: str, names: Mapping[str, str]) -> str | None:
    """The name that stands before a dot at the start."""
    at = rest.rfind(".")
    while at > 0:
        if rest[:at] in names:
            return rest[:at]
        at = rest.rfind(".", 0, at)
    return None


def _merged(groups: Sequence[Group]) -> list[Group]:
    """One group for all with the same hyperparameters."""
    by_values: dict[str, Group] = {}
    for group in groups:
        first = by_values.setdefault(json.dumps(group["hyperparameters"]), {**group, "params": []})
        first["params"] += group["params"]
    return list(by_values.values())
