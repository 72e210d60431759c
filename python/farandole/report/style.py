# SPDX-License-Identifier: Apache-2.0
"""How the page looks: light, dark, on a phone and in print; nothing is told by colour alone."""

from __future__ import annotations

STYLE = """
:root { color-scheme: light dark; --text: #1a1a1a; --page: #fff; --line: #ccc; --soft: #f2f2f2;
  --link: #0b57a4; }
@media (prefers-color-scheme: dark) { :root { --text: #e8e8e8; --page: #16181b; --line: #4a4d52;
  --soft: #24272b; --link: #8ab8f0; } }
@media print { :root { --text: #000; --page: #fff; --line: #bbb; --soft: #fff; }
  nav { display: none; } section, article, tr { break-inside: avoid; }
  .wide { overflow: visible; } }
a { color: var(--link); } a:focus-visible, summary:focus-visible, .wide:focus-visible {
  outline: 3px solid var(--link); outline-offset: 2px; }
nav ul { display: flex; flex-wrap: wrap; gap: .2rem 1rem; padding: 0; list-style: none; }
section { margin-bottom: 2rem; }
article { border: 1px solid var(--line); border-left: .5rem solid var(--text); padding: .2rem .9rem;
  margin: .8rem 0; background: var(--soft); }
article h3 { margin: .5rem 0; } summary { cursor: pointer; }
.words td { white-space: normal; text-align: left; vertical-align: top; }
.words th { text-align: left; }
.patterns { position: absolute; width: 0; height: 0; }
.legend svg { width: 1.6em; height: 1em; margin-right: .4em; vertical-align: -.1em; }
svg rect.part { stroke: var(--text); stroke-width: 1; }
svg text.share { paint-order: stroke; stroke: #fff; stroke-width: 4px; fill: #000;
  font-weight: 600; text-anchor: middle; }
svg text.share, svg text.bar { font-size: 13px; }
svg polyline { fill: none; stroke: var(--text); vector-effect: non-scaling-stroke; }
.strips td:nth-child(2) { width: 100%; min-width: 7rem; padding: .1rem 0; line-height: 0; }
.strips td, .strips th { padding: .1rem .4rem; } .strips th:nth-child(2) { text-align: left; }
.strips img { width: 100%; height: 1.1rem; image-rendering: pixelated;
  border: 1px solid var(--line); box-sizing: border-box; }
@media (max-width: 30rem) { .strips td:nth-child(2) { min-width: 4.5rem; }
  .strips table { font-size: .75rem; } .strips td, .strips th { padding: .1rem; } }
.scale img { width: 8rem; height: .9rem; vertical-align: -.1rem; border: 1px solid var(--line); }
@media screen and (prefers-color-scheme: dark) { .strips img, .scale img {
  filter: invert(1) hue-rotate(180deg); } }
.timed { display: flex; margin-bottom: .5rem; } .timed svg { min-width: 0; }
.timed svg.axis { flex: none; width: 4.5rem; }
"""
