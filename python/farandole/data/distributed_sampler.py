# SPDX-License-Identifier: Apache-2.0
"""torch's DistributedSampler that can go on in the middle of an epoch."""

from __future__ import annotations

from collections.abc import Iterator, Sized

from farandole import _C
from farandole.data.epoch_sampler import EpochSampler


class DistributedSampler(EpochSampler[int]):
    """Divides a dataset among ranks, sample by sample, in the order of torch's DistributedSampler.

    It is one, with the same arguments and the same indices, and has a state::

        sampler = farandole.DistributedSampler(dataset)
        loader = DataLoader(dataset, batch_size, sampler=sampler, num_workers=4)
        for epoch in range(sampler.epoch, epochs):
            sampler.set_epoch(epoch)
            for batches, batch in enumerate(loader, 1):
                ...  # a step, then for a checkpoint:
                state = sampler.state_dict(batches * batch_size)

    After ``load_state_dict(state)``, on any number of ranks, the next pass has the samples that are
    left of the epoch, each once.

    Args:
        dataset: The dataset, or its size.
        num_replicas: How many ranks divide it; default: those of the default group.
        rank: This one of them; default: the rank in the default group.
        shuffle: Whether each epoch has another order: torch.randperm with a generator of
            ``seed + epoch``.
        seed: The same on all ranks.
        drop_last: Whether samples at the end are left out so that all ranks have as many; otherwise
            samples from the beginning are added.
        even_divisible: If False, each sample is there exactly once, for an exact evaluation; some
            ranks have one more than others.

    Raises:
        InvalidArgument: arguments do not go together, or there is no default group.
    """

    def __init__(
        self,
        dataset: Sized | int,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        even_divisible: bool = True,
    ) -> None:
        super().__init__(num_replicas, rank, seed, drop_last, even_divisible)
        self.dataset = dataset  # type: ignore[assignment]  # torch's attribute
        self._size = dataset if isinstance(dataset, int) else len(dataset)
        self.shuffle = bool(shuffle)
        self._begin()

    def _make_share(self) -> _C.EpochShare:
        return _C.EpochShare.of_samples(
            size=self._size,
            shuffle=self.shuffle,
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
