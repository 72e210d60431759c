# SPDX-License-Identifier: Apache-2.0
"""The page of a run: everything in one file, from what matters most to the details."""

from __future__ import annotations

import html

from farandole.pages.document import document
from farandole.report import table_sections as tables
from farandole.report.bars import patterns
from farandole.report.figures import Figures
from farandole.report.hardware_section import hardware
from farandole.report.rule_sections import fired_rules, quiet_rules
from farandole.report.step_sections import breakdown, step_times
from farandole.report.style import STYLE


def page(figures: Figures) -> str:
    """The whole document."""
    sections = {
        "Job": tables.job(figures),
        "What to do": fired_rules(figures["rules"]),
        "What is missing": tables.sentences_of(figures["missing"], "Nothing is missing."),
        "Parts of a step": breakdown(figures),
        "Step times": step_times(figures),
        "Exposed communication": tables.exposed_communication(figures),
        "Stragglers": tables.stragglers(figures),
        "Data loading": tables.data_loading(figures),
        "Hardware": hardware(figures),
        "Collectives": tables.collectives(figures),
        "Annotations": tables.named(figures, "annotations", "No annotation was recorded."),
        "Checkpoints": tables.named(figures, "checkpoints", "No checkpoint was recorded."),
        "Ranks and clocks": tables.ranks(figures),
        "Other rules": quiet_rules(figures["rules"]),
        "What could not be read": tables.sentences_of(figures["unread"], "All was read."),
    }
    return page_of("What the training did", figures["folder"], sections)


def page_of(title: str, subtitle: str, sections: dict[str, str]) -> str:
    """Sections by their titles, with links to them."""
    ids = {name: name.lower().replace(" ", "-") for name in sections}
    links = "".join(f'<li><a href="#{ids[name]}">{name}</a></li>' for name in sections)
    body = "".join(
        f'<section id="{ids[name]}" aria-labelledby="{ids[name]}-title">'
        f'<h2 id="{ids[name]}-title">{name}</h2>{content}</section>\n'
        for name, content in sections.items()
    )
    return document(
        "farandole report",
        STYLE,
        f"{patterns()}<header><h1>{html.escape(title)}</h1><p>{html.escape(subtitle)}</p></header>"
        f'<nav aria-label="sections"><ul>{links}</ul></nav>\n<main>{body}</main>',
    )
