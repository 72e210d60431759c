# SPDX-License-Identifier: Apache-2.0
"""The rules: those that fired with advice and figures, then the others."""

from __future__ import annotations

import html
from collections.abc import Iterator
from typing import Any

from farandole.pages.document import table
from farandole.report.plain_words import sentence

_LONGEST_LIST = 20


def fired_rules(rules: list[dict[str, Any]]) -> str:
    """An article for each."""
    fired = [rule for rule in rules if rule["fired"]]
    if not fired:
        return "<p>No rule fired.</p>"
    return "".join(_article(rule) for rule in fired)


def quiet_rules(rules: list[dict[str, Any]]) -> str:
    """Those that did not fire, and those that had nothing to judge by."""
    quiet = [rule for rule in rules if not rule["fired"] and rule["has_data"]]
    blind = [rule for rule in rules if not rule["has_data"]]
    return "".join(
        f"<h3>{title}</h3>{_words(found)}"
        for title, found in (("Did not fire", quiet), ("Without data", blind))
        if found
    )


def _article(rule: dict[str, Any]) -> str:
    return (
        f"<article><h3>{html.escape(rule['rule'])} fired</h3><p>{sentence(rule['what'])}</p>"
        f"<p><strong>Advice:</strong> {sentence(rule['advice'])}</p>"
        f"<p>The fault was found in {rule['triggered']:,} of {rule['datapoints']:,} values.</p>"
        f"{_details('Figures', rule['figures'])}{_details('Parameters', rule['parameters'])}"
        "</article>\n"
    )


def _words(rules: list[dict[str, Any]]) -> str:
    rows = [
        (html.escape(rule["rule"]), sentence(rule["what"]), f"{rule['datapoints']:,}")
        for rule in rules
    ]
    return f'<div class="words">{table(("rule", "what it found", "values"), rows)}</div>'


def _details(title: str, values: dict[str, Any]) -> str:
    rows = [(html.escape(name), html.escape(value)) for name, value in _flat(values)]
    if not rows:
        return ""
    return f"<details><summary>{title}</summary>{table(('name', 'value'), rows)}</details>"


def _flat(values: dict[str, Any], before: str = "") -> Iterator[tuple[str, str]]:
    """Names of nested figures one after the other."""
    for name, value in values.items():
        if isinstance(value, dict):
            yield from _flat(value, f"{before}{name}, ")
        elif isinstance(value, list):
            more = ", ..." if len(value) > _LONGEST_LIST else ""
            yield f"{before}{name}", ", ".join(map(str, value[:_LONGEST_LIST])) + more
        else:
            yield f"{before}{name}", str(value)
