# SPDX-License-Identifier: Apache-2.0
"""Writes the numbers of benchmarks/results into README.md and docs/benchmarks.md.

    python -m benchmarks.publish            # a benchmark with --publish does it too
    python -m benchmarks.publish --check    # only fails if a page differs from the results

README.md gets five rows, docs/benchmarks.md gets all tables.
"""

import argparse
import sys

from farandole.bench.sizes import MIB

import benchmarks.amp.summary as amp
import benchmarks.checkpoint.summary as checkpoint
import benchmarks.collectives.summary as collectives
import benchmarks.ddp.summary as ddp
import benchmarks.gpu.summary as gpu
import benchmarks.horovod.summary as horovod
import benchmarks.hosts.summary as hosts
import benchmarks.predict.summary as predict
import benchmarks.train.summary as train
import benchmarks.zero.summary as zero
from benchmarks.collectives.lanes import GLOO, TORCH
from benchmarks.collectives.measured import Results
from benchmarks.harness.results import PUBLISHED, REPOSITORY, Row, rows_of
from benchmarks.harness.tables import markdown, time_text

BEGIN = "<!-- measured: begin; written by benchmarks/publish.py -->"
END = "<!-- measured: end -->"
SECTIONS = [
    *(ddp.SECTION, train.SECTION, zero.SECTION, amp.SECTION, checkpoint.SECTION),
    *(collectives.ALL_REDUCE, collectives.OTHERS, hosts.SECTION, predict.SECTION, gpu.SECTION),
    horovod.SECTION,
]


def long_section() -> str:
    """The text for docs/benchmarks.md."""
    texts = [section.text(rows_of(PUBLISHED / section.file)) for section in SECTIONS]
    return "\n\n".join(text for text in texts if text)


def comparison(
    ddp_rows: list[Row], zero_rows: list[Row], collective_rows: list[Row]
) -> list[tuple[str, str, float, float]]:
    """What is compared, with which peer, and both times in ms: the five rows of README.md."""
    found: list[tuple[str, str, float, float]] = []
    for task, what in (
        ("resnet50", "forward and backward, ResNet-50, 2 ranks"),
        ("transformer", "forward and backward, transformer with 33.6 M parameters, 2 ranks"),
    ):
        times = {row["lane"]: row["median_ms"] for row in ddp_rows if is_time(row, task, None)}
        if {"farandole", "torch_gloo_view"} <= times.keys():
            found.append((what, "DDP, gloo", times["farandole"], times["torch_gloo_view"]))
    for task, ranks, size in (("transformer", 2, "33.6 M"), ("gpt2", 4, "125 M")):
        times = {row["lane"]: row["median_ms"] for row in zero_rows if is_time(row, task, ranks)}
        if {"ours_shard", "torch_zero"} <= times.keys():
            what = f"step with sharded AdamW, transformer with {size} parameters, {ranks} ranks"
            found.append((what, "DDP, ZeRO, gloo", times["ours_shard"], times["torch_zero"]))
    results = Results(collective_rows)
    ours, gloo = (results.median(lane, 4, 16 * MIB) for lane in (TORCH, GLOO))
    if ours and gloo:
        what = "torch.distributed.all_reduce of 16 MiB, 4 ranks"
        found.append((what, "gloo", ours / 1e3, gloo / 1e3))
    return found


def is_time(row: Row, task: str, ranks: int | None) -> bool:
    """Whether the row has times of this model, and of this number of ranks if one is given."""
    return row["part"] == "times" and row["task"] == task and ranks in (None, row["ranks"])


def short_section(*rows: list[Row]) -> str:
    """The text for README.md; for `rows` see comparison()."""
    lines = [["median time", "Farandole", "torch", "with", "Farandole / torch"]]
    for what, peer, ours, theirs in comparison(*rows):
        times = [time_text(each * 1e3) for each in (ours, theirs)]
        lines.append([what, *times, peer, f"{ours / theirs:.2f}x"])
    return (
        f"{markdown(lines, left=(0, 3))}\n\nOn a machine with 2 cores, one thread for each rank: "
        "4 ranks share the cores.\n[docs/benchmarks.md](docs/benchmarks.md) has the method and all "
        "tables, [benchmarks/results](benchmarks/results) the raw results."
    )


def filled(page: str, text: str) -> str:
    """The page with `text` between the markers."""
    before, found, rest = page.partition(BEGIN)
    _, also_found, after = rest.partition(END)
    if not found or not also_found:
        sys.exit(f"A page lacks the lines\n{BEGIN}\n{END}")
    return f"{before}{BEGIN}\n{text}\n{END}{after}"


def main() -> None:
    """Reads the results, rewrites the pages or checks them."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--check", action="store_true", help="write nothing")
    check = parser.parse_args().check
    files = (section.FILE for section in (ddp, zero, collectives))
    pages = {
        REPOSITORY / "README.md": short_section(*(rows_of(PUBLISHED / file) for file in files)),
        REPOSITORY / "docs" / "benchmarks.md": long_section(),
    }
    for path, text in pages.items():
        wanted = filled(path.read_text(), text)
        if path.read_text() == wanted:
            continue
        if check:
            sys.exit(
                f"{path.name} differs from benchmarks/results: run python -m benchmarks.publish"
            )
        path.write_text(wanted)
        print(f"renewed: {path}")


if __name__ == "__main__":
    main()
