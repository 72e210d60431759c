# SPDX-License-Identifier: Apache-2.0
"""What a debugger's hook costs: steps that are saved, in turns with those of a training without it.

    python -m benchmarks.debugger.run            # two minutes
    python -m benchmarks.debugger.run --quick    # a tiny model: does it work?

One process trains a transformer by AdamW, with one thread. Saved are the loss and the reductions of
all gradients ("gradients"), or of all tensors ("everything"); "idle" is what the hook adds to any
other step. Prints a table and the targets, and writes debugger.jsonl (one line a row) into
build/benchmarks.
"""

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from farandole.bench.rounds import interleaved
from farandole.debugger import Hook, SaveConfig, create_trial
from torch import nn

from benchmarks.harness import tables
from benchmarks.harness.results import Row
from benchmarks.harness.rounds import compared, median_and_p95, say
from benchmarks.harness.script import Report, new_parser, parse
from benchmarks.harness.targets import Target, verdict
from benchmarks.zero.tasks import TASKS, batch_of, seeded_model

INTERVAL = 100  # of the target
MOST_PERCENT, MOST_PERCENT_IDLE = 1.0, 0.1
NEVER = 10**9
CALLS = 2000
TASK = TASKS["transformer"]


class Lane:
    """A training of its own, with a hook or without."""

    def __init__(self, name: str, size: str, folder: Path) -> None:
        self.model = seeded_model(TASK, size)
        self._loss = nn.CrossEntropyLoss()
        self._inputs, self._targets = batch_of(TASK, size, 0)
        self._optimizer = torch.optim.AdamW(self.model.parameters())
        if name == "no hook":
            return
        hook = Hook(
            folder / name,
            include_collections=["gradients"],
            save_all=name == "everything",
            save_config=SaveConfig(save_interval=1),
        )
        hook.register_module(self.model)
        hook.register_loss(self._loss)

    def step(self) -> float:
        """Milliseconds of one step."""
        begin = time.perf_counter()
        self._optimizer.zero_grad()
        outputs = self.model(self._inputs)
        self._loss(outputs.flatten(0, -2), self._targets.flatten()).backward()
        self._optimizer.step()
        return (time.perf_counter() - begin) * 1e3


LANES = ("no hook", "gradients", "everything")


def idle_ms(folder: Path) -> float:
    """Milliseconds that a hook adds to a step that it does not save, by modules that do nothing."""
    bare, watched, loss = nn.Identity(), nn.Identity(), nn.Identity()
    hook = Hook(folder, save_config=SaveConfig(save_interval=1, start_step=NEVER))
    hook.register_module(watched)
    hook.register_loss(loss)
    tensor, times = torch.zeros(1), {False: 0.0, True: 0.0}
    for _ in range(CALLS):
        for is_watched, first, second in ((False, bare, bare), (True, watched, loss)):
            begin = time.perf_counter()
            second(first(tensor))
            times[is_watched] += time.perf_counter() - begin
    assert not folder.exists()
    return (times[True] - times[False]) / CALLS * 1e3


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = new_parser(__doc__, "a tiny model, two rounds")
    parser.add_argument("--rounds", type=int, default=15, help="15")
    return parse(parser)


def measured(arguments: argparse.Namespace) -> Iterator[list[Row]]:
    """The rows of the table."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="farandole-bench-") as folder:
        lanes = {name: Lane(name, arguments.size, Path(folder)) for name in LANES}
        times: dict[str, list[float]] = {name: [] for name in LANES}
        for order in interleaved([*LANES], 1 + (2 if arguments.quick else arguments.rounds)):
            for name in order:
                times[name].append(lanes[name].step())
            say(", ".join(f"{name} {own[-1]:.0f} ms" for name, own in times.items()))
        verify(lanes, Path(folder), len(times["no hook"]))
        idle = idle_ms(Path(folder) / "idle")
    times = {name: own[1:] for name, own in times.items()}  # the first one warms up
    rows = [row_of(name, own, times["no hook"]) for name, own in times.items()]
    share = round(idle / statistics.median(times["no hook"]) * 100, 4)
    yield [*rows, {"lane": "idle", "exposed_ms": round(idle, 4), "share_percent": share}]


def verify(lanes: dict[str, Lane], folder: Path, steps: int) -> None:
    """The hook has changed nothing, and has saved every gradient of every step."""
    states = [lane.model.state_dict() for lane in lanes.values()]
    for state in states[1:]:
        assert all(torch.equal(state[key], tensor) for key, tensor in states[0].items())
    parameters = len([*lanes["no hook"].model.parameters()])
    for name in ("gradients", "everything"):
        trial = create_trial(folder / name)
        assert trial.steps(show_incomplete_steps=True) == [*range(steps)]
        assert len(trial.tensor_names(collection="gradients")) == parameters


def row_of(name: str, own: list[float], without: list[float]) -> Row:
    """``share_percent``: of the time of the training, if each 100th step has that cost."""
    row = {"lane": name, "model": TASK.name, **median_and_p95(own), **compared(own, without)}
    share = row["exposed_ms"] / statistics.median(without) / INTERVAL * 100
    return {**row, "share_percent": round(share, 4)}


COLUMNS: list[tables.Column] = [
    ("hook", tables.field("lane")),
    *tables.MEDIAN_AND_P95,
    ("longer by ms", tables.field("exposed_ms", "+.3f")),
    ("share of the training", tables.field("share_percent", "+.4f", " %")),
]


def table(rows: list[Row]) -> str:
    """One line a row."""
    return tables.titled(
        f"a step that is saved, {TASK.title}; share: if each {INTERVAL}th is", rows, COLUMNS
    )


def targets(rows: list[Row]) -> list[Target]:
    """Of gradients, and of steps that are not saved."""
    share = {row["lane"]: row["share_percent"] for row in rows}
    return [
        (f"gradients <= {MOST_PERCENT} %", verdict(share["gradients"], MOST_PERCENT)),
        (f"idle <= {MOST_PERCENT_IDLE} %", verdict(share["idle"], MOST_PERCENT_IDLE)),
    ]


if __name__ == "__main__":
    given = parse_arguments()
    Report("debugger.jsonl", table, targets).make(given, measured(given))
