# SPDX-License-Identifier: Apache-2.0
"""Rules about labels and predictions of classes."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from farandole.debugger.rule import Rule
from farandole.debugger.trial import Trial

Classes = NDArray[np.int64]


def _classes(
    labels: NDArray[Any], predictions: NDArray[Any], argmax: bool
) -> tuple[Classes, Classes]:
    """Labels and predicted classes, one of each for a sample. Scores are in the dimension 1.

    Labels below 0, as CrossEntropyLoss's ignore_index, are of samples that do not count.
    """
    if predictions.ndim > labels.ndim or (argmax and predictions.ndim > 1):
        predictions = predictions.argmax(axis=1)
    if labels.ndim > predictions.ndim:  # one-hot
        labels = labels.argmax(axis=1)
    labels, predictions = (
        np.rint(each).astype(np.int64).reshape(-1) for each in (labels, predictions)
    )
    counts = labels >= 0
    return labels[counts], predictions[counts]


class ClassImbalance(Rule):
    """Fires if classes differ too much in how often they come, or in how often they are missed.

    After ``samples`` samples, the most frequent label may come at most ``threshold_imbalance``
    times as often as the rarest one, and of each class at most ``threshold_misprediction`` (a
    fraction) may be predicted as another. Predictions are classes, or scores of each, of which the
    largest counts (``argmax`` asks for it where both have as many dimensions). It needs all
    elements of what the two regexes match.
    """

    def __init__(
        self,
        base_trial: Trial,
        threshold_imbalance: float = 10.0,
        threshold_misprediction: float = 0.7,
        samples: int = 500,
        argmax: bool = False,
        labels_regex: str = ".*CrossEntropyLoss_input_1",
        predictions_regex: str = ".*CrossEntropyLoss_input_0",
        **options: Any,
    ) -> None:
        super().__init__(base_trial, **options)
        self._imbalance, self._misprediction = threshold_imbalance, threshold_misprediction
        self._samples, self._argmax = samples, argmax
        self._labels_regex, self._predictions_regex = labels_regex, predictions_regex
        self._label_counts: dict[int, int] = {}
        self._missed_counts: dict[int, int] = {}

    def invoke_at_step(self, step: int) -> bool:
        """Count the step's classes, and compare."""
        names = self.names(step, regex=self._labels_regex)
        for labels, predictions in self._pairs(names, step):
            for label in labels:
                self._label_counts[int(label)] = self._label_counts.get(int(label), 0) + 1
            for label in labels[labels != predictions]:
                self._missed_counts[int(label)] = self._missed_counts.get(int(label), 0) + 1
        if names and sum(self._label_counts.values()) >= self._samples:
            self._judge(step, names[0])
        return self.has_found(step)

    def _pairs(self, label_names: list[str], step: int) -> Iterator[tuple[Classes, Classes]]:
        prediction_names = self.names(step, regex=self._predictions_regex)
        for label_name, prediction_name in zip(label_names, prediction_names, strict=False):
            predictions = self.base_trial.tensor(prediction_name)
            for labels, worker in self.each_worker([label_name], step):
                if worker in predictions.workers(step):
                    yield _classes(
                        labels.value(step, worker=worker),
                        predictions.value(step, worker=worker),
                        self._argmax,
                    )

    def _judge(self, step: int, name: str) -> None:
        counts = self._label_counts
        most, least = max(counts, key=counts.__getitem__), min(counts, key=counts.__getitem__)
        if counts[most] > self._imbalance * counts[least]:
            text = f"has class {most} {counts[most]} times and class {least} {counts[least]} times"
            self.found(step, text, name)
        for label, missed in sorted(self._missed_counts.items()):
            if missed > self._misprediction * counts[label]:
                text = f"has class {label}, of which {missed} of {counts[label]} are mispredicted"
                self.found(step, text, name)


class Confusion(Rule):
    """Fires if the confusion matrix of a step is not good enough.

    Of what is predicted as a class, at least ``min_diag`` (a fraction) must be of this class, and
    at most ``max_off_diag`` of any other one. Labels and predictions are the tensors of these
    names, else the first of the collections. ``category_no`` is without effect: classes that are
    not seen have no faults. It needs all elements.
    """

    def __init__(
        self,
        base_trial: Trial,
        category_no: int | None = None,  # noqa: ARG002 (smdebug's)
        labels: str = "labels",
        predictions: str = "predictions",
        labels_collection: str = "labels",
        predictions_collection: str = "predictions",
        min_diag: float = 0.9,
        max_off_diag: float = 0.1,
        **options: Any,
    ) -> None:
        super().__init__(base_trial, **options)
        self._sources = ((labels, labels_collection), (predictions, predictions_collection))
        self._min_diag, self._max_off_diag = min_diag, max_off_diag

    def invoke_at_step(self, step: int) -> bool:
        """Build the matrix of the step over all workers, and look at it."""
        chosen = [self._choose(step, name, collection) for name, collection in self._sources]
        if None in chosen:
            return False
        label_name, prediction_name = map(str, chosen)
        predictions = self.base_trial.tensor(prediction_name)
        counts: Counter[tuple[int, int]] = Counter()
        for tensor, worker in self.each_worker([label_name], step):
            if worker in predictions.workers(step):
                labels, predicted = _classes(
                    tensor.value(step, worker=worker), predictions.value(step, worker=worker), False
                )
                counts.update(zip(predicted.tolist(), labels.tolist(), strict=True))
        self._judge(step, counts, prediction_name)
        return self.has_found(step)

    def _choose(self, step: int, name: str, collection: str) -> str | None:
        named = self.names(step, regex=f"^{re.escape(name)}$")
        return next(iter(named or self.names(step, collections=[collection])), None)

    def _judge(self, step: int, counts: Counter[tuple[int, int]], name: str) -> None:
        """By predicted class and label; there may be very many classes, most of them unseen."""
        totals: Counter[int] = Counter()
        for (predicted, _), count in counts.items():
            totals[predicted] += count
        for predicted, label in sorted({*counts, *((each, each) for each in totals)}):
            share = counts[predicted, label] / totals[predicted]
            is_diagonal = label == predicted
            if share < self._min_diag if is_diagonal else share > self._max_off_diag:
                text = f"has {100 * share:.1f} % of label {label} where it says {predicted}"
                self.found(step, text, name)
