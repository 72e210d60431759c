# SPDX-License-Identifier: Apache-2.0
"""The page of `farandole report --compare`."""

from __future__ import annotations

import html
from typing import Any

from farandole.pages.document import table
from farandole.report.bars import bars, legend
from farandole.report.breakdown import PARTS
from farandole.report.page import page_of
from farandole.report.plain_words import milliseconds, quantity, sentence
from farandole.report.table_sections import sentences_of


def comparison_page(found: dict[str, Any]) -> str:
    """The whole document."""
    sections = {
        "Gain": f"<p><strong>{html.escape(gain_of(found))}</strong></p>",
        "Parts of a step": _parts(found),
        "Rules": _rules(found["rules"]),
        "Hardware": _hardware(found["hardware"]),
        "What is missing": _missing(found["missing"]),
    }
    return page_of("Before and after", f"{found['before']} and {found['after']}", sections)


def gain_of(found: dict[str, Any]) -> str:
    """In one sentence."""
    step = found["step"]
    if step["speedup"] is None:
        return (
            "One of the runs has no steps that all ranks recorded, so there is nothing to compare."
        )
    word = "fast" if step["speedup"] >= 1 else "fast: it became slower"
    return (
        f"A step took {step['before_ms']:g} ms before and takes {step['after_ms']:g} ms after: "
        f"{step['speedup']:.3g} times as {word}."
    )


def _parts(found: dict[str, Any]) -> str:
    if found["step"]["speedup"] is None:
        return "<p>No step of both runs was recorded.</p>"
    bar_rows = [_bar(found, when) for when in ("before", "after")]
    labels = [
        f"{when}: {milliseconds(found['step'][f'{when}_ms'])} a step"
        for when in ("before", "after")
    ]
    rows = [
        _changed(PARTS[each["part"]], each["before_ms"], each["after_ms"])
        for each in found["parts"]
    ]
    step = found["step"]
    rows.append(_changed("step", step["before_ms"], step["after_ms"]))
    used = [each["part"] for each in found["parts"] if each["before_ms"] or each["after_ms"]]
    return (
        "<p>Means of all ranks in milliseconds.</p>"
        + legend(used)
        + bars(bar_rows, labels)
        + table(("part", "before", "after", "change"), rows)
    )


def _bar(found: dict[str, Any], when: str) -> dict[str, Any]:
    parts = {each["part"]: each[f"{when}_ms"] for each in found["parts"]}
    whole = sum(parts.values()) or 1.0
    return {
        "parts_ms": parts,
        "parts_percent": {part: 100 * ms / whole for part, ms in parts.items()},
    }


def _changed(name: str, before: float, after: float) -> tuple[str, ...]:
    return html.escape(name), f"{before:.2f}", f"{after:.2f}", f"{after - before:+.2f}"


def _rules(rules: list[dict[str, Any]]) -> str:
    rows = [
        (
            html.escape(rule["rule"]),
            *(
                f"<strong>{rule[when]['state']}</strong><br>{sentence(rule[when]['what'])}"
                for when in ("before", "after")
            ),
        )
        for rule in rules
    ]
    if not rows:
        return "<p>No rule fired before or after.</p>"
    return f'<div class="words">{table(("rule", "before", "after"), rows)}</div>'


def _hardware(groups: list[dict[str, Any]]) -> str:
    rows = [
        (html.escape(each["title"]), *(quantity(each[when], each["unit"])
         for when in ("before", "after")))
        for each in groups
    ]  # fmt: skip
    if not rows:
        return "<p>There are no system metrics of both runs.</p>"
    return table(("mean of", "before", "after"), rows)


def _missing(missing: dict[str, list[str]]) -> str:
    return "".join(
        f"<h3>{when.capitalize()}</h3>{sentences_of(found, 'Nothing is missing.')}"
        for when, found in missing.items()
    )
