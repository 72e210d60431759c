# SPDX-License-Identifier: Apache-2.0
"""Targets of a run, and whether it has reached them."""

Target = tuple[str, str]  # its name and what became of it


def verdict(value: float, most: float) -> str:
    """Whether `value` is at most `most`, and by what factor it is not."""
    return "reached" if value <= most else f"short by {value / most:.2f}x"


def text_of(targets: list[Target]) -> str:
    """One line a target."""
    if not targets:
        return "targets: none for these"
    width = max(len(name) for name, _ in targets)
    return "targets\n" + "\n".join(f"{name.ljust(width)}  {state}" for name, state in targets)
