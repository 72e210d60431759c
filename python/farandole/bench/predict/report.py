# SPDX-License-Identifier: Apache-2.0
"""What `farandole bench predict` prints."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from farandole.bench.predict.advice import Effect, best_of_each_kind
from farandole.bench.predict.links import GB, US, Link, Links
from farandole.bench.predict.prediction import Conditions, Prediction

MIB = 1 << 20
LEAST_GAIN = 0.005


def text_of(
    conditions: Conditions, predictions: Sequence[Prediction], effects: Sequence[Effect]
) -> str:
    """Everything."""
    return "\n\n".join([_head(conditions), _table(predictions), _advice(predictions[-1], effects)])


def rows_of(predictions: Sequence[Prediction], effects: Sequence[Effect]) -> dict[str, Any]:
    """The same for programs."""
    return {
        "predictions": [
            {
                "ranks": each.layout.ranks,
                "hosts": each.layout.hosts,
                "step_ms": round(each.step_ms, 4),
                "exposed_ms": round(each.exposed_ms, 4),
                "efficiency": round(each.efficiency, 4),
                "interval": [round(each.low, 4), round(each.high, 4)],
            }
            for each in predictions
        ],
        "changes": [
            {
                "what": effect.change.what,
                "kind": effect.change.kind,
                "step_ms": round(effect.prediction.step_ms, 4),
                "gain": round(effect.gain, 4),
            }
            for effect in effects
        ],
    }


def link_text(link: Link) -> str:
    """In one line."""
    spread = f" +- {100 * link.spread:.0f} %" if link.spread else ""
    return f"{link.latency_s / US:.1f} us, {link.bytes_per_s / GB:.4g} GB/s{spread}"


def _head(conditions: Conditions) -> str:
    step, links = conditions.step, conditions.links
    return "\n".join(
        [
            f"{step.name} on {step.device}: {len(step.gradients)} gradients, "
            f"{step.gradient_bytes / MIB:.1f} MiB; a step of {step.step_ms:.2f} ms without "
            f"communication (backward ends at {step.backward_end_ms:.2f}, optimizer "
            f"{step.optimizer_ms:.2f}), jitter {100 * conditions.jitter:.1f} %",
            f"within a host: {link_text(links.within)}; {links.within.source}",
            f"between hosts: {link_text(links.between)}; {links.between.source}",
            f"{conditions.ranks_per_host} ranks a host, {_way(links)}",
        ]
    )


def _way(links: Links) -> str:
    ways = {"stripes": "collectives of Farandole", "nccl": "NCCL's ring or tree"}
    return ways.get(links.algorithm.value, f"NCCL's {links.algorithm.value}")


def _table(predictions: Sequence[Prediction]) -> str:
    lines = [["ranks", "hosts", "step ms", "exposed ms", "efficiency", "5 % to 95 %"]]
    for each in predictions:
        interval = f"{100 * each.low:.1f} to {100 * each.high:.1f} %"
        lines.append(
            [
                *(str(each.layout.ranks), str(each.layout.hosts)),
                *(f"{each.step_ms:.2f}", f"{each.exposed_ms:.2f}"),
                *(f"{100 * each.efficiency:.1f} %", interval),
            ]
        )
    return _columns(lines)


def _advice(last: Prediction, effects: Sequence[Effect]) -> str:
    """The changes that help most, and what no setting can give."""
    helping = [each for each in best_of_each_kind(effects) if each.gain >= LEAST_GAIN]
    bounds = [each for each in effects if each.change.is_bound]
    lines = [["", "step ms", "saved"]]
    lines += [_line(each) for each in helping]
    title = f"What would help {last.layout.ranks} ranks most:"
    if not helping:
        title = f"No change of settings would save {last.layout.ranks} ranks 0.5 % of a step."
        lines = lines[:1]
    text = f"{title}\n{_columns(lines)}" if helping else title
    return f"{text}\n\nWhere the time is lost:\n{_columns([*lines[:1], *map(_line, bounds)])}"


def _line(effect: Effect) -> list[str]:
    step_ms = f"{effect.prediction.step_ms:.2f}"
    return [effect.change.what, step_ms, f"{100 * effect.gain:.1f} %"]


def _columns(lines: Sequence[Sequence[str]]) -> str:
    """Right-aligned, but for texts in the first column."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    first_is_text = not lines[-1][0].isdigit()
    return "\n".join(
        "  ".join(
            cell.ljust(width) if place == 0 and first_is_text else cell.rjust(width)
            for place, (cell, width) in enumerate(zip(line, widths, strict=True))
        ).rstrip()
        for line in lines
    )
