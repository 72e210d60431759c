# SPDX-License-Identifier: Apache-2.0
"""Batches of samples with similar lengths, divided among ranks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from torch import Tensor

from farandole import _C
from farandole.data.epoch_sampler import EpochSampler


class DistributedBucketBatchSampler(EpochSampler[list[int]]):
    """Batches of samples with similar lengths, so that little padding is computed.

    A batch sampler: ``DataLoader(dataset, batch_sampler=sampler)``. Shuffled samples are sorted by
    length within buckets of ``bucket_batches`` batches, from long to short in the first bucket,
    from short to long in the next, and so on; ranks take batches in turn, so that those of one step
    have similar lengths too. Positions, ``len()`` and ``state_dict(consumed)`` count batches.

    Args:
        lengths: Of each sample. The same on all ranks.
        batch_size: Samples in a batch of one rank.
        bucket_batches: Batches that are sorted together. More of them mean less padding and less
            random batches.
        num_replicas: How many ranks divide them; default: those of the default group.
        rank: This one of them; default: the rank in the default group.
        shuffle: Whether each epoch has another order.
        seed: The same on all ranks.
        drop_last: Whether an incomplete batch, and batches that ranks cannot share equally, are
            left out; otherwise batches from the beginning are added.
        even_divisible: If False, each sample is there exactly once; some ranks have one batch more
            than others.

    Raises:
        InvalidArgument: a size is not positive, or there is no default group.
    """

    def __init__(
        self,
        lengths: Sequence[int] | Tensor,
        batch_size: int,
        bucket_batches: int = 50,
        num_replicas: int | None = None,
        rank: int | None = None,
        shuffle: bool = True,
        seed: int = 0,
        drop_last: bool = False,
        *,
        even_divisible: bool = True,
    ) -> None:
        super().__init__(num_replicas, rank, seed, drop_last, even_divisible)
        self.lengths = lengths.tolist() if isinstance(lengths, Tensor) else list(lengths)
        self.batch_size = self._integer("batch_size", batch_size)
        self.bucket_batches = self._integer("bucket_batches", bucket_batches)
        self.shuffle = bool(shuffle)
        self._begin()

    def _make_share(self) -> _C.EpochShare:
        return _C.EpochShare.of_lengths(
            lengths=self.lengths,
            batch_size=self.batch_size,
            bucket_batches=self.bucket_batches,
            shuffle=self.shuffle,
            num_replicas=self.num_replicas,
            rank=self.rank,
            seed=self.seed,
            drop_last=self.drop_last,
            even_divisible=self.even_divisible,
        )

    def __iter__(self) -> Iterator[list[int]]:
        """Begin a pass through the batches of this rank, with the first that is asked for.

        Loaders with workers make an iterator that they do not use.
        """
        yield from self._give(self._begun_share().begin_batches())
