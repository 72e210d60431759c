# SPDX-License-Identifier: Apache-2.0
"""A sampler that divides what is left of an epoch anew whenever the ranks change."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Sized
from typing import Any

import torch.utils.data

from farandole import _C, distributed
from farandole.errors import InvalidArgument, sentences


class ElasticSampler(torch.utils.data.Sampler[int]):
    """Divides a dataset among the ranks of the default group, of which it follows the changes.

    Put it into a TorchState, call record_batch() after each batch, and set_epoch() at the end of
    each epoch. After a commit, each sample of the epoch that is left is there once, on whatever
    ranks there are then (a few from its beginning twice, if the ranks cannot share equally).

    Threads: one call at a time.

    Args:
        dataset: Its size must not change.
        shuffle: Whether each epoch has another order, of ``seed + epoch``.
        seed: The same on all ranks.
    """

    def __init__(self, dataset: Sized, shuffle: bool = True, seed: int = 0) -> None:
        self.dataset, self.shuffle, self.seed = dataset, shuffle, seed
        self.epoch = 0
        self.processed_num = 0
        """Samples that all ranks together have recorded in this epoch."""
        self.indices: list[int] = []
        """Of this rank, in the pass that has begun."""
        self.reset()

    def set_epoch(self, epoch: int) -> None:
        """Begin an epoch at its beginning. Call it at the end of one, not at the beginning."""
        self.epoch = epoch
        self.processed_num = 0
        self.reset()

    def record_batch(self, batch_idx: int, batch_size: int) -> None:
        """Note that this rank, like all others, has taken a batch."""
        del batch_idx
        self.processed_num += batch_size * self.num_replicas

    def record_indices(self, indices: Sequence[int]) -> None:
        """Note that this rank has taken these samples, and all others as many.

        Raises:
            InvalidArgument: they are not those that come next on this rank.
        """
        given = [int(index) for index in indices]
        done = max(0, self.processed_num - self._start) // self.num_replicas
        if given != self.indices[done : done + len(given)]:
            raise InvalidArgument(
                sentences(
                    "elastic-indices",
                    f"record_indices() got {len(given)} samples that do not come next.",
                    "what is left of an epoch is what comes after the samples that were taken, in "
                    "its order, on all ranks.",
                    "record samples in the order in which the sampler gives them.",
                )
            )
        self.processed_num += len(given) * self.num_replicas

    def reset(self) -> None:
        """Divide what is not yet recorded among the ranks that there are now."""
        self.num_replicas = distributed.world_size()
        self.rank = distributed.rank()
        self._share = _C.EpochShare.of_samples(
            size=len(self.dataset),
            shuffle=bool(self.shuffle),
            num_replicas=self.num_replicas,
            rank=self.rank,
            seed=self.seed,
            drop_last=False,
            even_divisible=True,
        )
        self._start = min(self.processed_num, len(self.dataset))
        self._rewind()
        self.num_samples = self._share.length
        self.total_size = self._share.total_length

    def state_dict(self) -> dict[str, int]:
        """The place in the data: the epoch, and how many of its samples all ranks have taken."""
        return {"epoch": self.epoch, "processed_num": self.processed_num}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Go to such a place, on all ranks."""
        self.epoch = state_dict["epoch"]
        self.processed_num = state_dict["processed_num"]
        self.reset()

    def __iter__(self) -> Iterator[int]:
        """Begin a pass through this rank's samples of what was left at the last reset()."""
        self._rewind()
        self.indices = self._share.begin_pass()
        return iter(self.indices)

    def __len__(self) -> int:
        """Samples of this rank in a pass."""
        return self.num_samples

    def _rewind(self) -> None:
        place = self._share.state(0) | {"epoch": self.epoch, "position": self._start}
        self._share.load_state(place)
