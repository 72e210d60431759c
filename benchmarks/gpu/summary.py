# SPDX-License-Identifier: Apache-2.0
"""The results of gpu.jsonl as docs/benchmarks.md and the table of a run have them."""

from farandole.bench.sizes import size_text

from benchmarks.gpu.figure import HEADS, Figure
from benchmarks.harness.results import Row
from benchmarks.harness.section import Section
from benchmarks.harness.tables import Lines, markdown
from benchmarks.harness.targets import verdict

FILE = "gpu.jsonl"
TITLES = {"resnet50": "ResNet-50", "gpt2": "transformer, 125 M parameters"}
LARGE = 16 * 1024**2  # bytes from which bandwidth has a target
MOST_LAUNCH, MOST_STEP, MOST_TIME, LEAST_OF_COPY = 0.7, 1.01, 1.02, 0.9


def figure(name: str, ours: Row, peer: Row, label: str, key: str, most: float | None) -> Figure:
    """`key`: the field of ours that has the ratio."""
    if "cannot" in ours:
        return Figure(name, None, us_of(peer), label, state=ours["cannot"])
    low, high = ours[f"{key}_quartiles"]
    state = "" if most is None else verdict(ours[key], most)
    times = (us_of(ours), us_of(peer))
    return Figure(name, *times, label, ours[key], (low, high), most, state)


def peer_of(row: Row) -> str:
    """What the lanes torch_... use."""
    return "torch, NCCL" if row["device"] == "cuda" else "a second group of ours"


def us_of(row: Row) -> float:
    """Its median."""
    return float(row["median_us"] if "median_us" in row else 1e3 * row["median_ms"])


def figures(rows: list[Row]) -> list[Figure]:
    """All comparisons of rows that were measured together."""
    cells = {place(row): row for row in rows}
    found = []
    for row in rows:
        part, what, size, lane = place(row)
        if lane not in {"farandole", "farandole_zero", "farandole_bfloat16"}:
            continue
        if part in {"bandwidth", "launch"}:
            name = f"host time of {what}"
            most: float | None = MOST_LAUNCH
            if part == "bandwidth":
                name = f"{what}, {size_text(size)}, {row['busbw_gb_s']:.1f} GB/s"
                most = MOST_TIME if size >= LARGE else None
            other = cells[part, what, size, "torch_nccl"]
            found.append(figure(name, row, other, peer_of(row), "of_peer", most))
        elif part == "steps":
            found += step_figures(row, cells)
        else:
            found += adamw_figures(row, cells)
    return found


def place(row: Row) -> tuple[str, str, int, str]:
    """What a row is about."""
    what = row.get("operation") or row.get("task", "")
    return row["part"], what, row.get("bytes", 0), row["lane"]


def step_figures(row: Row, cells: dict[tuple[str, str, int, str], Row]) -> list[Figure]:
    """Against torch's, and against no DDP at all, which is a target for one rank."""
    task, is_zero = row["task"], row["lane"] == "farandole_zero"
    name = f"{TITLES[task]}, step with {'DDP and ZeRO' if is_zero else 'DDP'}"
    peer = "torch_zero" if is_zero else "torch_nccl"
    found = [figure(name, row, cells["steps", task, 0, peer], peer_of(row), "of_peer", None)]
    if not is_zero:
        most = MOST_STEP if row["ranks"] == 1 else None
        local = cells["steps", task, 0, "local"]
        found.append(figure(name, row, local, "no DDP", "ratio", most))
    return found


def adamw_figures(row: Row, cells: dict[tuple[str, str, int, str], Row]) -> list[Figure]:
    """The ratio to a copy is that of times: at most 1 / LEAST_OF_COPY."""
    name = "AdamW of the sharded optimizer"
    if row["lane"] == "farandole_bfloat16":
        name += ", bfloat16 with masters"
    copy, other = cells["adamw", "", 0, "copy"], cells["adamw", "", 0, "torch"]
    if "cannot" in row:
        return [Figure(name, None, us_of(copy), "a copy of as many bytes", state=row["cannot"])]
    ratio, most = 1 / row["of_copy"], 1 / LEAST_OF_COPY
    of_copy = Figure(
        *(name, us_of(row), us_of(copy), "a copy of as many bytes"),
        ratio=ratio,
        target=round(most, 3),
        state=verdict(ratio, most),
    )
    return [of_copy, figure(name, row, other, "torch's fused", "of_peer", None)]


def lines(rows: list[Row]) -> Lines:
    """A table of all figures."""
    return [HEADS, *(each.line() for each in figures(rows))]


def runs(rows: list[Row]) -> list[list[Row]]:
    """Rows that were measured together: of one GPU, number of hosts and of ranks."""
    places = dict.fromkeys((row["gpu"], row["hosts"], row["ranks"]) for row in rows)
    return [
        [row for row in rows if (row["gpu"], row["hosts"], row["ranks"]) == each] for each in places
    ]


def title(row: Row) -> str:
    """Of the table of a run."""
    hosts, ranks = row["hosts"], row["ranks"]
    where = f" on {hosts} hosts" if hosts > 1 else ""
    return f"{row['gpu']}, {ranks} rank{'s' * (ranks > 1)}{where}"


def summary(rows: list[Row]) -> str:
    """Markdown: one table a run."""
    tables = [(title(run[0]), markdown(lines(run), (0, 3, 6))) for run in runs(rows)]
    return "\n\n".join(f"{name}:\n\n{table}" for name, table in tables)


SECTION = Section(
    FILE,
    "Collectives and training steps on GPUs, torch {torch}, NCCL {nccl}, driver {driver}, commit "
    "{commit}, {date}. All rows are in [gpu.jsonl](../benchmarks/results/gpu.jsonl).",
    summary,
)
