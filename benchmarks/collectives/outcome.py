# SPDX-License-Identifier: Apache-2.0
"""Tables of one run: times and ratios, and which targets were reached."""

from farandole.bench.sizes import KIB, MIB, size_text

from benchmarks.collectives.lanes import GLOO, LANES, OPENMPI, OUR_MPI, SYMMETRIC, TORCH
from benchmarks.collectives.measured import Results
from benchmarks.collectives.operations import OPERATIONS
from benchmarks.harness import tables
from benchmarks.harness.results import Row
from benchmarks.harness.tables import ratio_text, time_text
from benchmarks.harness.targets import Target, verdict

RATIOS = [(SYMMETRIC, GLOO), (SYMMETRIC, OPENMPI), (TORCH, GLOO), (TORCH, OPENMPI)]
RATIOS.append((OUR_MPI, OPENMPI))


def table(results: Results, ranks: int) -> str:
    """Medians of all lanes, and how many times faster than its peers each of ours is."""
    measured = {row["lane"] for row in results.rows if row["ranks"] == ranks}
    lanes = [lane for lane in LANES if lane in measured | results.cannot.keys()]
    ratios = [pair for pair in RATIOS if measured.issuperset(pair)]
    heads = [f"{LANES[ours].short} vs {LANES[peer].short}" for ours, peer in ratios]
    lines = [["bytes", *(LANES[lane].short for lane in lanes), *heads]]
    for size in results.sizes(ranks):
        cells = [cell_text(results, lane, ranks, size) for lane in lanes]
        cells += [ratio_text(results.ratio(ours, peer, ranks, size)) for ours, peer in ratios]
        lines.append([size_text(size), *cells])
    table_text = tables.columns(lines)
    notes = [f"\nn/a in {LANES[lane].short}: {why}" for lane, why in results.cannot.items()]
    return f"{results.title}, float32, {ranks} ranks, median\n{table_text}{''.join(notes)}"


def cell_text(results: Results, lane: str, ranks: int, size: int) -> str:
    """The median, or the bandwidth where that is what is asked."""
    cell = results.cells.get((lane, ranks, size))
    if cell is None and lane in results.cannot:
        return "n/a"
    if cell is not None and results.operation == "send_stream":
        return f"{cell['busbw_gb_s']:.2f} GB/s"
    return time_text(results.median(lane, ranks, size))


def targets(results: Results) -> list[Target]:
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
        state = f"{extra_ms} ms, {verdict(extra_ms, 80)}"
        lines.append(("import farandole beyond torch: <= 80 ms", state))
    return lines


def ratio_target(
    results: Results, what: str, ours: str, peer: str, ranks: int, sizes: list[int], factor: float
) -> Target:
    """At least `factor` times faster than `peer` at every size; says the worst."""
    name = f"{ranks} ranks, {what}: >= {factor:g}x {LANES[peer].short}"
    found = [(results.ratio(ours, peer, ranks, size), size) for size in sizes]
    measured = [(ratio, size) for ratio, size in found if ratio is not None]
    if not measured:
        lacking = [LANES[lane].short for lane in (ours, peer) if lane in results.cannot]
        return name, f"n/a in {lacking[0]}" if lacking else "not measured"
    ratio, size = min(measured)
    worst = f"{ratio_text(ratio)} at {size_text(size)}"
    missed = sum(ratio < factor for ratio, _ in measured)
    count = f" ({missed} of {len(measured)} sizes are)" if missed and len(measured) > 1 else ""
    return name, f"{worst}, {verdict(factor, ratio)}{count}"


def time_target(what: str, microseconds: float | None, most: float) -> Target:
    """At most `most` microseconds."""
    name = f"2 ranks, {what}: <= {most:g} us"
    if microseconds is None:
        return name, "not measured"
    return name, f"{time_text(microseconds)}, {verdict(microseconds, most)}"


def operation_targets(rows: list[Row]) -> list[Target]:
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
