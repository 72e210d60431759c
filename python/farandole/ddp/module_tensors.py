# SPDX-License-Identifier: Apache-2.0
"""Which tensors a module holds, and whether they are still the same objects."""

from __future__ import annotations

import operator
from collections.abc import Collection, Sequence
from typing import Any

from torch import Tensor, nn

from farandole.errors import InvalidArgument, sentences

Named = list[tuple[str, Tensor]]


def named_buffers(module: nn.Module, ignored: Collection[str] = ()) -> Named:
    """Each buffer once, by its first name, without the ``ignored`` ones."""
    return [(name, buffer) for name, buffer in module.named_buffers() if name not in ignored]


def sparse_names(module: nn.Module) -> set[str]:
    """Names of the parameters whose gradients are sparse tensors: of embeddings that ask for it."""
    sparse = {
        id(layer.weight)
        for layer in module.modules()
        if isinstance(layer, (nn.Embedding, nn.EmbeddingBag)) and layer.sparse
    }
    return {name for name, parameter in module.named_parameters() if id(parameter) in sparse}


class ParameterWatch:
    """Sees whether a module got other parameters, as ``load_state_dict(assign=True)`` gives it.

    It runs before each forward, so it compares objects and touches no tensor. Parameters keep the
    names and the order that they had when the module was wrapped: torch.nn.utils.prune renames
    them.
    """

    def __init__(self, module: nn.Module) -> None:
        """Remember what ``module`` has now."""
        self._module = module
        self._named: Named = list(module.named_parameters())
        self._names = [name for name, _ in self._named]  # that they have now
        self._remember()

    def named_parameters(self) -> Named:
        """Each parameter once, by its first name when the module was wrapped."""
        return list(self._named)

    def has_changed(self) -> bool:
        """Whether an object is another one than when it was last asked.

        Tensors that functional_call() lends the module are no parameters, and do not count.

        Raises:
            InvalidArgument: there are parameters by other names.
        """
        present = self._present()
        if _same(self._values, present) or any(map(_is_lent, present)):
            return False
        named = dict(self._module.named_parameters())
        names = {id(parameter): name for name, parameter in named.items()}
        if names.keys() == {id(parameter) for _, parameter in self._named}:
            self._names = [names[id(parameter)] for _, parameter in self._named]
            self._remember()
            return False
        changed = sorted(named.keys() ^ set(self._names))
        if changed:
            raise InvalidArgument(
                sentences(
                    "parameters-changed",
                    "parameters were added to or removed from a wrapped module: "
                    f"{', '.join(changed[:10])}.",
                    "the buckets were planned for the parameters that the module had when it was "
                    "wrapped.",
                    "change the module first, then wrap it again on every rank.",
                )
            )
        first_names = [name for name, _ in self._named]
        self._named = [
            (first, named[now]) for first, now in zip(first_names, self._names, strict=True)
        ]
        self._remember()
        return True

    def _remember(self) -> None:
        self._dicts: list[dict[str, Any]] = []
        for module in self._module.modules():
            self._dicts += [module._parameters, module._modules]
        self._values = self._present()

    def _present(self) -> list[object]:
        return [value for holder in self._dicts for value in holder.values()]


def same_tensors(left: Named, right: Named) -> bool:
    """Whether both hold the same objects, in one order."""
    return _same([tensor for _, tensor in left], [tensor for _, tensor in right])


def _is_lent(value: object) -> bool:
    return isinstance(value, Tensor) and not isinstance(value, nn.Parameter)


def _same(left: Sequence[object], right: Sequence[object]) -> bool:
    return len(left) == len(right) and all(map(operator.is_, left, right))
