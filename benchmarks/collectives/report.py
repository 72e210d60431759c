# SPDX-License-Identifier: Apache-2.0
"""Tables of one run: times and ratios, and which targets were reached."""

from collections.abc import Iterable
from typing import Any

from lanes import LANES
from operations import KIB, MIB, OPERATIONS

Row = dict[str, Any]
SYMMETRIC, TORCH, GLOO, OPENMPI = "farandole_symmetric", "farandole_torch", "gloo_torch", "openmpi"
RATIOS = [(SYMMETRIC, GLOO), (SYMMETRIC, OPENMPI), (TORCH, GLOO), (TORCH, OPENMPI)]
TITLES = {
    "send_recv": "send_recv, half of there and back",
    "send_stream": "send_recv, one way, several messages in flight",
}
SHORT = {
    "farandole_symmetric": "C++ sym.",
    "farandole_ordinary": "C++ ord.",
    "farandole_torch": "torch",
    "openmpi": "OpenMPI",
    "gloo_torch": "gloo",
}


class Results:
    """Rows of one operation, by lane, ranks and bytes."""

    def __init__(self, rows: Iterable[Row], operation: str = "all_reduce") -> None:
        rows = list(rows)
        own = [row for row in rows if row.get("operation", "all_reduce") == operation]
        self.operation = operation
        self.rows = [row for row in own if "median_us" in row]
        self.cells = {(row["lane"], row["ranks"], row["bytes"]): row for row in self.rows}
        self.cannot = {row["lane"]: row["cannot"] for row in own if "cannot" in row}
        self.import_time = next((row for row in rows if row["lane"] == "import"), None)

    @property
    def ranks(self) -> list[int]:
        """All rank counts."""
        return sorted({row["ranks"] for row in self.rows})

    def sizes(self, ranks: int) -> list[int]:
        """All sizes measured with `ranks`."""
        return sorted({row["bytes"] for row in self.rows if row["ranks"] == ranks})

    def median(self, lane: str, ranks: int, size: int) -> float | None:
        """Median in microseconds, None if not measured."""
        cell = self.cells.get((lane, ranks, size))
        return cell and cell["median_us"]

    def ratio(self, ours: str, peer: str, ranks: int, size: int) -> float | None:
        """How many times faster we are."""
        ours_us, peer_us = self.median(ours, ranks, size), self.median(peer, ranks, size)
        return peer_us / ours_us if ours_us and peer_us else None


def size_text(size: int) -> str:
    """4 B, 16 KiB, 64 MiB."""
    for unit, name in ((MIB, "MiB"), (KIB, "KiB")):
        if size >= unit and size % unit == 0:
            return f"{size // unit} {name}"
    return f"{size} B"


def time_text(microseconds: float | None) -> str:
    """Three digits with a unit."""
    if microseconds is None:
        return "-"
    value, unit = (microseconds, "us") if microseconds < 10_000 else (microseconds / 1e3, "ms")
    return f"{value:.{2 if value < 10 else 1 if value < 100 else 0}f} {unit}"


def ratio_text(ratio: float | None) -> str:
    """How many times faster: 0.85x, 9.3x, 24x."""
    if ratio is None:
        return "-"
    return f"{ratio:.{2 if ratio < 1 else 1 if ratio < 10 else 0}f}x"


def table(results: Results, ranks: int) -> str:
    """Medians of all lanes, and how many times faster than its peers each of ours is."""
    measured = {row["lane"] for row in results.rows if row["ranks"] == ranks}
    lanes = [each.name for each in LANES if each.name in measured | results.cannot.keys()]
    ratios = [pair for pair in RATIOS if measured.issuperset(pair)]
    heads = [f"{SHORT[ours]} vs {SHORT[peer]}" for ours, peer in ratios]
    lines = [["bytes", *(SHORT[lane] for lane in lanes), *heads]]
    for size in results.sizes(ranks):
        cells = [cell_text(results, lane, ranks, size) for lane in lanes]
        cells += [ratio_text(results.ratio(ours, peer, ranks, size)) for ours, peer in ratios]
        lines.append([size_text(size), *cells])
    notes = [f"\nn/a in {SHORT[lane]}: {why}" for lane, why in results.cannot.items()]
    return (
        f"{TITLES.get(results.operation, results.operation)}, float32, {ranks} ranks, median\n"
        + (columns(lines) + "".join(notes))
    )


def cell_text(results: Results, lane: str, ranks: int, size: int) -> str:
    """The median, or the bandwidth where that is what is asked."""
    cell = results.cells.get((lane, ranks, size))
    if cell is None and lane in results.cannot:
        return "n/a"
    if cell is not None and results.operation == "send_stream":
        return f"{cell['busbw_gb_s']:.2f} GB/s"
    return time_text(results.median(lane, ranks, size))


def markdown(lines: list[list[str]]) -> str:
    """A Markdown table: heads, how they are aligned, and the rest."""
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def columns(lines: list[list[str]]) -> str:
    """Right-aligned columns."""
    widths = [max(map(len, column)) for column in zip(*lines, strict=True)]
    return "\n".join(
        "  ".join(cell.rjust(width) for cell, width in zip(line, widths, strict=True))
        for line in lines
    )


def targets(results: Results) -> list[tuple[str, str]]:
    """Each target and what became of it."""
    big = [size for size in results.sizes(2) if 256 * KIB <= size <= 64 * MIB]
    lines = []
    for what, ours, gloo, openmpi in (
        ("C++ symmetric, 256 KiB to 64 MiB", SYMMETRIC, 20, 3),
        ("through torch, 256 KiB to 64 MiB", TORCH, 8, 1.2),
    ):
        for peer, factor in ((GLOO, gloo), (OPENMPI, openmpi)):
            lines.append(ratio_target(results, what, ours, peer, 2, big, factor))
    lines.append(time_target("C++ symmetric, 1 KiB", results.median(SYMMETRIC, 2, KIB), 1))
    lines.append(time_target("through torch, 1 KiB", results.median(TORCH, 2, KIB), 20))
    for ours, what in ((SYMMETRIC, "C++ symmetric"), (TORCH, "through torch")):
        for size in (KIB, 16 * MIB):
            name = f"{what}, {size_text(size)}"
            lines.append(ratio_target(results, name, ours, GLOO, 4, [size], 10))
    if results.import_time:
        extra_ms = results.import_time["import_farandole_ms"]
        reached = verdict(extra_ms <= 80, extra_ms / 80)
        lines.append(("import farandole beyond torch: <= 80 ms", f"{extra_ms} ms, {reached}"))
    return lines


def ratio_target(
    results: Results, what: str, ours: str, peer: str, ranks: int, sizes: list[int], factor: float
) -> tuple[str, str]:
    """At least `factor` times faster than `peer` at every size; says the worst."""
    name = f"{ranks} ranks, {what}: >= {factor:g}x {SHORT[peer]}"
    found = [(results.ratio(ours, peer, ranks, size), size) for size in sizes]
    measured = [(ratio, size) for ratio, size in found if ratio is not None]
    if not measured:
        lacking = [SHORT[lane] for lane in (ours, peer) if lane in results.cannot]
        return name, f"n/a in {lacking[0]}" if lacking else "not measured"
    ratio, size = min(measured)
    worst = f"{ratio_text(ratio)} at {size_text(size)}"
    missed = sum(ratio < factor for ratio, _ in measured)
    count = f" ({missed} of {len(measured)} sizes are)" if missed and len(measured) > 1 else ""
    return name, f"{worst}, {verdict(ratio >= factor, factor / ratio)}{count}"


def time_target(what: str, microseconds: float | None, most: float) -> tuple[str, str]:
    """At most `most` microseconds."""
    name = f"2 ranks, {what}: <= {most:g} us"
    if microseconds is None:
        return name, "not measured"
    return name, f"{time_text(microseconds)}, {verdict(microseconds <= most, microseconds / most)}"


def verdict(reached: bool, factor: float) -> str:
    """`factor`: how many times too slow."""
    return "reached" if reached else f"short by {factor:.2f}x"


def operation_targets(rows: list[Row]) -> list[tuple[str, str]]:
    """Each collective through torch against its peers, where it was measured with 2 ranks."""
    lines = []
    for operation in OPERATIONS.values():
        results = Results(rows, operation.name)
        sizes = [size for size in results.sizes(2) if size >= 256 * KIB]
        if not sizes or operation.pairs or operation.name == "all_reduce":
            continue
        what = f"{operation.name} through torch, from 256 KiB"
        lines += [
            ratio_target(results, what, TORCH, peer, 2, sizes, factor)
            for peer, factor in ((GLOO, 8), (OPENMPI, 1.2))
        ]
    return lines


def text_of(lines: list[tuple[str, str]]) -> str:
    """One line a target."""
    if not lines:
        return "targets: none for these"
    width = max(len(name) for name, _ in lines)
    return "targets\n" + "\n".join(f"{name.ljust(width)}  {state}" for name, state in lines)
