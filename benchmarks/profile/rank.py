# SPDX-License-Identifier: Apache-2.0
"""One rank of all lanes: TASK SIZE OUTPUT SOCKET FOLDER RANK WORLD_SIZE (from run.py).

On a line "<lane> <steps>" it answers with when each step began and ended; on "idle <calls>" with
nanoseconds of an annotation that nobody records.
"""

import time
from pathlib import Path
from typing import Any

import farandole
from farandole import profiler
from farandole.debugger import Hook, SaveConfig

from benchmarks.ddp.models import Task
from benchmarks.harness.answering import this_member
from benchmarks.harness.groups import Groups, both_joined
from benchmarks.profile.lanes import HOOK_INTERVAL
from benchmarks.zero.tasks import TASKS, batch_of, seeded_model
from benchmarks.zero.trainers import Trainer


class Rank:
    """One training, with and without who looks at it."""

    def __init__(self, task: Task, size: str, output: Path, rank: int, groups: Groups) -> None:
        self._output = output
        self._batch = batch_of(task, size, rank)
        self._trainer = Trainer("ours_shard", seeded_model(task, size), groups)
        self._hooked = Trainer("ours_shard", seeded_model(task, size), groups)
        hook = Hook(
            output / "tensors",
            include_collections=["gradients"],
            save_config=SaveConfig(save_interval=HOOK_INTERVAL),
        )
        hook.register_module(self._hooked.module)

    def answer(self, words: list[str]) -> dict[str, Any]:
        """Does what a line from run.py asks for."""
        what, count = words[0], int(words[1])
        if what == "idle":
            return {"annotation_ns": annotation_ns(count)}
        if what == "off":
            return self._measured(self._trainer, count)
        everything = what == "everything"
        profiler.start(self._output, system_interval_ms=500 if everything else None)
        times = self._measured(self._hooked if everything else self._trainer, count)
        profiler.stop()
        return times

    def _measured(self, trainer: Trainer, steps: int) -> dict[str, Any]:
        begins, ends = [], []
        for _ in range(steps):
            trainer.optimizer.zero_grad(set_to_none=True)
            farandole.barrier()
            begin, _, end = trainer.step(self._batch)
            begins.append(begin)
            ends.append(end)
        return {"begin_ns": begins, "end_ns": ends}


def annotation_ns(calls: int) -> float:
    """Of one that nobody records, in Python."""
    begin = time.perf_counter_ns()
    for _ in range(calls):
        with profiler.annotate("phase"):
            pass
    return (time.perf_counter_ns() - begin) / calls


if __name__ == "__main__":
    (task, size, output), member = this_member()
    with both_joined(member) as groups:
        member.serve(Rank(TASKS[task], size, Path(output), member.rank, groups).answer)
