# SPDX-License-Identifier: Apache-2.0
"""torch's WeightedRandomSampler, divided among ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from farandole import _C
from farandole.data.epoch_sampler import EpochSampler


class DistributedWeightedRandomSampler(EpochSampler[int]):
    """Divides samples that are drawn with weights among ranks.

    All ranks together have the samples of torch's WeightedRandomSampler with a generator of
    ``seed + epoch``: a function of the arguments and the epoch alone.

    Args:
        weights: Of each sample, at least 0 and not necessarily adding up to 1; at most 2^24 of
            them, the same on all ranks.
        num_samples: Samples of all ranks in an epoch.
        replacement: Whether a sample may be drawn again.
        num_replicas: How many ranks divide them; default: those of the default group.
        rank: This one of them; default: the rank in the default group.
        seed: The same on all ranks.
        drop_last: Whether samples at the end are left out so that all ranks have as many; otherwise
            samples from the beginning are added.
        even_divisible: If False, nothing is left out or added.

    Raises:
        InvalidArgument: weights or numbers from which nothing can be drawn, or no default group.
    """

    def __init__(
        self,
        weights: Sequence[float] | Tensor,
        num_samples: int,
        replacement: bool = True,
        num_replicas: int | None = None,
        rank: int | None = None,
        seed: int = 0,
        drop_last: bool = False,
        *,
        even_divisible: bool = True,
    ) -> None:
        super().__init__(num_replicas, rank, seed, drop_last, even_divisible)
        self.weights = torch.as_tensor(weights, dtype=torch.double)
        self.samples_of_all_ranks = self._integer("num_samples", num_samples)
        self.replacement = bool(replacement)
        self._begin()

    def _make_share(self) -> _C.EpochShare:
        return _C.EpochShare.of_weights(
            weights=self.weights,
            num_samples=self.samples_of_all_ranks,
            replacement=self.replacement,
            num_replicas=self.num_replicas,
            rank=self.rank,
            seed=self.seed,
            drop_last=self.drop_last,
            even_divisible=self.even_divisible,
        )

    def __iter__(self) -> Iterator[int]:
        """Begin a pass through the samples of this rank, with the first that is asked for.

        Loaders with workers make an iterator that they do not use.
        """
        yield from self._give(self._begun_share().begin_pass())
