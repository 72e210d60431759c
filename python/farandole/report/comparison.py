# SPDX-License-Identifier: Apache-2.0
"""Two runs side by side: what a change has gained."""

from __future__ import annotations

from typing import Any

from farandole.profiler.rules.figures import plain
from farandole.report.breakdown import PARTS
from farandole.report.figures import Figures


def comparison_of(before: Figures, after: Figures) -> dict[str, Any]:
    """Means over the ranks of each run."""
    step = {"before_ms": _step_ms(before), "after_ms": _step_ms(after)}
    return {
        "version": 1,
        "before": before["folder"],
        "after": after["folder"],
        "step": step | {"speedup": _ratio(step["before_ms"], step["after_ms"])},
        "parts": [
            {"part": part, "before_ms": _part_ms(before, part), "after_ms": _part_ms(after, part)}
            for part in PARTS
        ],
        "hardware": _hardware(before, after),
        "rules": _rules(before, after),
        "missing": {"before": before["missing"], "after": after["missing"]},
    }


def _step_ms(figures: Figures) -> float | None:
    return _mean([row["step_ms"] for row in figures["steps"]])


def _part_ms(figures: Figures, part: str) -> float | None:
    return _mean([row["parts_ms"][part] for row in figures["steps"]])


def _mean(values: list[float]) -> float | None:
    return plain(sum(values) / len(values)) if values else None


def _ratio(before: float | None, after: float | None) -> float | None:
    return plain(before / after) if before and after else None


def _hardware(before: Figures, after: Figures) -> list[dict[str, Any]]:
    """The mean of each group of metrics that both have."""
    means = [
        {
            (group["title"], group["unit"]): _mean([row["mean"] for row in group["rows"]])
            for group in figures["hardware"]
        }
        for figures in (before, after)
    ]
    return [
        {"title": key[0], "unit": key[1], "before": means[0][key], "after": means[1][key]}
        for key in means[0]
        if key in means[1]
    ]


def _rules(before: Figures, after: Figures) -> list[dict[str, Any]]:
    """Those that fired in either, those that are cured first."""
    states = [{rule["rule"]: rule for rule in figures["rules"]} for figures in (before, after)]
    found = []
    for name in dict.fromkeys([*states[0], *states[1]]):
        old, new = (state.get(name) for state in states)
        if (old and old["fired"]) or (new and new["fired"]):
            found.append({"rule": name, "before": _state(old), "after": _state(new)})
    return sorted(found, key=lambda rule: rule["after"]["state"] == "fired")


def _state(rule: dict[str, Any] | None) -> dict[str, str]:
    if rule is None or not rule["has_data"]:
        return {"state": "no data", "what": rule["what"] if rule else ""}
    return {"state": "fired" if rule["fired"] else "did not fire", "what": rule["what"]}
