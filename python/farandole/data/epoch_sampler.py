# SPDX-License-Identifier: Apache-2.0
"""What the samplers have in common: epochs, positions in them, and their state."""

from __future__ import annotations

import logging
from abc import abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, TypeVar

import torch.utils.data

from farandole import _C, distributed
from farandole.arguments import int_of

Item = TypeVar("Item", covariant=True)
Given = TypeVar("Given")
_logger = logging.getLogger(__name__)


class EpochSampler(torch.utils.data.DistributedSampler[Item]):
    """Base of the samplers, with the attributes of torch's DistributedSampler.

    Threads: one call at a time; a DataLoader calls it in the process that iterates.
    """

    _share: _C.EpochShare
    _given = 0  # items that the newest pass has given
    _is_epoch_next = False  # set_epoch() has named an epoch of which nothing was given yet

    def __init__(
        self,
        num_replicas: int | None,
        rank: int | None,
        seed: int,
        drop_last: bool,
        even_divisible: bool,
    ) -> None:
        """Not torch's: there may be no dataset. Call _begin() after it."""
        replicas = distributed.world_size() if num_replicas is None else num_replicas
        self.num_replicas = self._integer("num_replicas", replicas)
        self.rank = self._integer("rank", distributed.rank() if rank is None else rank)
        self.seed = self._integer("seed", seed)
        self.drop_last = bool(drop_last)
        self.even_divisible = bool(even_divisible)
        self.epoch = 0
        self._epoch_of_last_pass: int | None = None
        self._may_repeat = False  # the program has said so, or was told that it does

    def _integer(self, name: str, value: object) -> int:
        return int_of(type(self).__name__, name, value, most=2**63 - 1)

    @abstractmethod
    def _make_share(self) -> _C.EpochShare:
        """Of the attributes."""

    def _begin(self) -> None:
        self._share = self._make_share()
        self._show_lengths()

    def _show_lengths(self) -> None:
        self.num_samples = self._share.length
        self.total_size = self._share.total_length

    def __len__(self) -> int:
        """Samples (batches of a batch sampler) of this rank in the pass that is next or begun."""
        return self._share.length

    def set_epoch(self, epoch: int) -> None:
        """Set the epoch of the next pass, and with it its order.

        Another epoch begins at its beginning; the same one keeps the position of a loaded state.

        Raises:
            InvalidArgument: it is below 0; nothing is changed.
        """
        number = self._integer("epoch", epoch)
        self._set_share_epoch(number)
        self.epoch = number
        self._may_repeat = True
        self._show_lengths()

    def _set_share_epoch(self, epoch: int) -> None:
        previous = self._share.epoch
        self._share.set_epoch(epoch)
        if epoch != previous:
            self._given = 0
            self._is_epoch_next = True

    def state_dict(self, consumed: int | None = None) -> dict[str, int]:
        """The place in the data, from which any number of ranks can go on.

        Args:
            consumed: Number of samples that this rank has trained on in this pass, which is
                ``batches * batch_size`` (for a batch sampler: batches). Default: the number of
                samples that this sampler has yielded in this pass. The default is right for
                torchdata's StatefulDataLoader and for a DataLoader without workers. A DataLoader
                with workers fetches samples ahead of the training, so pass the number.

        All ranks have consumed as many. With ``even_divisible=False``, where one may have a sample
        less, save the state of rank 0.
        """
        self._set_share_epoch(self.epoch)  # which a program may have set without set_epoch()
        count = self._given if consumed is None else self._integer("consumed", consumed)
        return self._share.state(count)

    def load_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Begin the next pass at the position of a state; call it on all ranks.

        The epoch and the seed become those of the state. If the state is at the end of its epoch, a
        later epoch that was passed to set_epoch() is kept, because StatefulDataLoader loads states
        when a pass begins.

        Raises:
            InvalidArgument: the state is one of other data or another kind of order; nothing is
                changed.
        """
        self._set_share_epoch(self.epoch)
        self._share.load_state(dict(state_dict))
        if self._is_epoch_next and self._share.length == 0 and self.epoch > self._share.epoch:
            self._share.set_epoch(self.epoch)
        self._given, self._is_epoch_next = 0, False
        self.epoch = self._share.epoch
        self.seed = self._share.seed
        self._may_repeat = True
        self._show_lengths()

    def check_state_dict(self, state_dict: Mapping[str, int]) -> None:
        """Fail if load_state_dict() would.

        Raises:
            InvalidArgument: likewise.
        """
        self._share.check_state(dict(state_dict))

    def _begun_share(self) -> _C.EpochShare:
        """For a new pass."""
        self._set_share_epoch(self.epoch)
        self._warn_of_repetition()
        return self._share

    def _give(self, items: Sequence[Given]) -> Iterator[Given]:
        """Those of a pass that begins, counted for state_dict()."""
        self._given, self._is_epoch_next = 0, False
        for count, item in enumerate(items, 1):
            self._given = count
            yield item

    def _warn_of_repetition(self) -> None:
        """Once, if a shuffled pass has the order of the last one since nothing set its epoch."""
        repeats = self.epoch == self._epoch_of_last_pass and getattr(self, "shuffle", True)
        if repeats and not self._may_repeat:
            _logger.warning(
                "%s starts another pass with epoch %d, which repeats the order of the previous "
                "pass: call set_epoch(epoch) before each pass.",
                type(self).__name__,
                self.epoch,
            )
        self._may_repeat = bool(repeats)
        self._epoch_of_last_pass = self.epoch

    def __getstate__(self) -> dict[str, Any]:
        """For copies, which begin their next pass where this one would."""
        place = self.state_dict(0) | {"position": self._share.next_position}
        return {**self.__dict__, "_share": place}

    def __setstate__(self, state: dict[str, Any]) -> None:
        """Of what __getstate__ returned."""
        place = state.pop("_share")
        self.__dict__.update(state)
        self._begin()
        self.load_state_dict(place)
