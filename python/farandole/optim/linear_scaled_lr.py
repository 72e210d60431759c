# SPDX-License-Identifier: Apache-2.0
"""The linear scaling rule. arXiv:1706.02677."""

from __future__ import annotations

from farandole import _C


def linear_scaled_lr(
    base_lr: float, global_batch_size: int, reference_batch_size: int = 256
) -> float:
    """The learning rate of SGD for another batch size.

    The linear scaling rule: "When the minibatch size is multiplied by k, multiply the learning rate
    by k" (Goyal et al. 2017, Accurate, large minibatch SGD, arXiv:1706.02677, 2.1). It goes with a
    warm-up of about 5 epochs.

    Args:
        base_lr: The learning rate that was tuned for ``reference_batch_size``.
        global_batch_size: Samples of one step on all ranks, accumulated ones too.
        reference_batch_size: Samples of one step that ``base_lr`` was tuned for.

    Raises:
        InvalidArgument: a size is not positive.
    """
    return _C.linear_scaled_lr(base_lr, global_batch_size, reference_batch_size)
