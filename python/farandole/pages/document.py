# SPDX-License-Identifier: Apache-2.0
"""A document of HTML, and its tables."""

from __future__ import annotations

import html
from collections.abc import Iterable, Sequence

_STYLE = """
body { font: 16px/1.45 system-ui, sans-serif; color: var(--text); background: var(--page);
  max-width: 60rem; margin: 0 auto; padding: 1rem; overflow-wrap: anywhere; }
h1 { font-size: 1.5rem; } h2 { font-size: 1.2rem; margin-top: 2rem; }
svg { width: 100%; height: auto; } svg text { font: 11px system-ui, sans-serif; fill: var(--text); }
svg .title { font-weight: 600; } svg .grid { stroke: var(--line); }
.legend { display: flex; flex-wrap: wrap; gap: .3rem 1rem; padding: 0; list-style: none; }
.wide { overflow-x: auto; } table { border-collapse: collapse; font-size: .875rem; }
td, th { padding: .3rem .6rem; text-align: right; border-bottom: 1px solid var(--line);
  white-space: nowrap; overflow-wrap: normal; }
td:first-child, th:first-child { text-align: left; }
@media (max-width: 30rem) { td, th { padding: .3rem .25rem; } table { font-size: .8rem; }
  td:first-child { white-space: normal; } }
"""
LIGHT = ":root { color-scheme: light; --text: #1a1a1a; --page: #fff; --line: #ddd; }"


def document(title: str, style: str, body: str) -> str:
    """The whole of it; ``style`` says at least what the colours --text, --page and --line are."""
    return (
        '<!DOCTYPE html>\n<html lang="en"><head><meta charset="utf-8">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        f"<title>{html.escape(title)}</title><style>{style}{_STYLE}</style></head><body>\n"
        f"{body}</body></html>\n"
    )


def table(heads: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """A table that scrolls by itself where it is wide. Cells are HTML, heads are text."""
    lines = ["".join(f'<th scope="col">{html.escape(head)}</th>' for head in heads)]
    lines += ["".join(f"<td>{cell}</td>" for cell in row) for row in rows]
    inside = "".join(f"<tr>{line}</tr>\n" for line in lines)
    return f'<div class="wide" tabindex="0"><table>{inside}</table></div>\n'
