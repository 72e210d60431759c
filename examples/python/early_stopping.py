# SPDX-License-Identifier: Apache-2.0
"""Ends a training that has stopped to improve."""

from __future__ import annotations


class EarlyStopping:
    """Counts evaluations since the best one. Ranks that pass equal metrics decide alike."""

    def __init__(self, patience: int) -> None:
        """`patience`: evaluations in a row that may be no better than the best; 0: any number."""
        self.patience = patience
        self.best, self.since_best = -float("inf"), 0

    def should_stop(self, metric: float) -> bool:
        """After an evaluation; more is better."""
        self.since_best = 0 if metric > self.best else self.since_best + 1
        self.best = max(self.best, metric)
        return 0 < self.patience <= self.since_best

    def state_dict(self) -> dict[str, float]:
        """For a checkpoint."""
        return {"best": self.best, "since_best": self.since_best}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Goes on from there."""
        self.best, self.since_best = state["best"], int(state["since_best"])
