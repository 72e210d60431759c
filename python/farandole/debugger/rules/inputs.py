# SPDX-License-Identifier: Apache-2.0
"""Rules about what goes into a model."""

from __future__ import annotations

from typing import Any

import numpy as np

from farandole.debugger.rule import Rule
from farandole.debugger.trial import Trial


class CheckInputImages(Rule):
    """Fires if images are not normalized: the mean of a channel is far from zero.

    After ``threshold_samples`` images the mean of no channel may be more than ``threshold_mean``
    from zero. ``channel`` is the dimension of channels. It needs all elements of the inputs of the
    registered module (the collection "inputs"), or of ``regex``.
    """

    def __init__(
        self,
        base_trial: Trial,
        threshold_mean: float = 0.2,
        threshold_samples: int = 500,
        regex: str | None = None,
        channel: int = 1,
        **options: Any,
    ) -> None:
        super().__init__(base_trial, **options)
        self._threshold_mean, self._threshold_samples = threshold_mean, threshold_samples
        self._regex, self._channel = regex, channel
        self._images = 0
        self._means: list[Any] = []  # of each channel, with the number of images

    def invoke_at_step(self, step: int) -> bool:
        """Add the step's images, and look at the means once there are enough."""
        collections = ["inputs"] if self._regex is None else []
        names = self.names(step, collections=collections, regex=self._regex)
        for tensor, worker in self.each_worker(names, step):
            images = tensor.value(step, worker=worker)
            if images.ndim > self._channel and images.size:
                others = tuple(axis for axis in range(images.ndim) if axis != self._channel)
                self._means.append((len(images), images.mean(axis=others, dtype=np.float64)))
                self._images += len(images)
        if names and self._images >= self._threshold_samples:
            self._judge(step, names[0])
        return self.has_found(step)

    def _judge(self, step: int, name: str) -> None:
        sums = np.sum([number * means for number, means in self._means], axis=0)
        for channel, mean in enumerate(sums / self._images):
            if abs(mean) > self._threshold_mean:
                text = f"has a mean of {mean:.3g} in channel {channel} over {self._images} images"
                self.found(step, text, name)


class NLPSequenceRatio(Rule):
    """Fires if too many tokens of a step are of one kind, such as padding.

    ``token_values`` are numbers of tokens, separated by commas, and ``token_thresholds_percent``
    the percentages that each may reach. It needs all elements of what embeddings take (collection
    "embedding_input"), or of ``tensor_regex``.
    """

    def __init__(
        self,
        base_trial: Trial,
        tensor_regex: str | None = None,
        token_values: str = "0",
        token_thresholds_percent: str = "50",
        **options: Any,
    ) -> None:
        super().__init__(base_trial, **options)
        self._regex = tensor_regex
        percents = [float(text) for text in token_thresholds_percent.split(",")]
        tokens = [int(text) for text in token_values.split(",")]
        self._thresholds = dict(zip(tokens, percents, strict=True))

    def invoke_at_step(self, step: int) -> bool:
        """Count tokens."""
        collections = ["embedding_input"] if self._regex is None else []
        names = self.names(step, collections=collections, regex=self._regex)
        for tensor, worker in self.each_worker(names, step):
            tokens = tensor.value(step, worker=worker)
            for token, threshold in self._thresholds.items():
                percent = 100.0 * float(np.mean(tokens == token)) if tokens.size else 0.0
                if percent > threshold:
                    text = f"has {percent:.1f} % tokens {token}"
                    self.found(step, text, tensor.name, worker)
        return self.has_found(step)
