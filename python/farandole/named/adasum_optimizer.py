# SPDX-License-Identifier: Apache-2.0
"""An optimizer whose updates, not its gradients, are combined: by Adasum (arXiv:2006.02924)."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, NoReturn

import torch
from torch import Tensor
from torch.optim import Optimizer

from farandole.errors import NotSupported, sentences
from farandole.named import operations
from farandole.named.compression import Compressor
from farandole.named.named_collectives import NamedCollectives
from farandole.named.parameter_names import names_of


def adasum_optimizer(
    optimizer: Optimizer,
    named: NamedCollectives,
    names: Iterable[tuple[str, Tensor]] | None,
    compression: Compressor,
) -> Optimizer:
    """An optimizer of the class of ``optimizer`` and with its state. Collective.

    A step is that of the class on this rank's gradients; then parameters become what they were plus
    the Adasum of the ranks' changes.
    """
    kind = type(optimizer)
    wrapped: AdasumOptimizer = object.__new__(type(kind.__name__, (AdasumOptimizer, kind), {}))
    vars(wrapped).update({key: each for key, each in vars(optimizer).items() if key != "step"})
    wrapped._named, wrapped._compression = named, compression
    wrapped._parameter_names = names_of(wrapped.param_groups, names)
    return wrapped


class AdasumOptimizer(Optimizer):
    """What is put before an optimizer's class; see adasum_optimizer()."""

    _named: NamedCollectives
    _compression: Compressor
    _parameter_names: dict[Tensor, str]

    def synchronize(self) -> None:
        """Do nothing: gradients stay those of this rank."""

    def skip_synchronize(self) -> NoReturn:
        """Refuse.

        Raises:
            NotSupported: step() is what combines.
        """
        raise NotSupported(
            sentences(
                "adasum-skip",
                "skip_synchronize() was called on an optimizer with op Adasum.",
                "changes of parameters are combined, which are there after the step alone.",
                "leave it out; gradients may be clipped before step().",
            )
        )

    def step(self, closure: Any = None) -> Any:
        """A step of the class, then the Adasum of the ranks' changes. Collective."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        trained = [
            each for group in self.param_groups for each in group["params"] if each.requires_grad
        ]
        before = [each.detach().clone() for each in trained]
        super().step()
        self._combine(trained, before)
        return loss

    @torch.no_grad()
    def _combine(self, trained: list[Tensor], before: list[Tensor]) -> None:
        running = []
        for parameter, start in zip(trained, before, strict=True):
            change, context = self._compression.compress(parameter.detach() - start)
            name = self._parameter_names[parameter]
            handle = operations.all_reduce(self._named, [change], name, op="adasum", in_place=True)
            running.append((handle, context))
        for parameter, start, (handle, context) in zip(trained, before, running, strict=True):
            change = self._compression.decompress(self._named.wait(handle)[0], context)
            parameter.copy_(start.add_(change))
