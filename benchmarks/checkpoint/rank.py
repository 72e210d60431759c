# SPDX-License-Identifier: Apache-2.0
"""One rank of all lanes: TASK SIZE PLACE SOCKET FOLDER RANK WORLD_SIZE (from run.py).

On a line "<part> <lane>" from run.py it answers with one line of JSON: milliseconds, or bytes.
"""

import gc
import shutil
import time
from pathlib import Path
from typing import Any

import torch.distributed as dist
from farandole.bench.memory import Peak, share_bytes

from benchmarks.checkpoint.tasks import ONE_AT_A_TIME
from benchmarks.checkpoint.training import KINDS, Training
from benchmarks.harness.answering import this_member
from benchmarks.harness.groups import joined


class Rank:
    """The lanes of one rank."""

    def __init__(self, task: str, size: str, place: Path) -> None:
        self.task, self.size, self.place = task, size, place
        self.trainings: dict[str, Training] = {}

    def answer(self, words: list[str]) -> dict[str, Any]:
        """Does what a line from run.py asks for."""
        part, lane = words
        if lane not in self.trainings:
            if self.task in ONE_AT_A_TIME:
                self.forget_others()
            folder = self.place / lane
            self.trainings[lane] = KINDS[lane](self.task, self.size, folder)
            self.trainings[lane].save()
        training = self.trainings[lane]
        gc.collect()
        dist.barrier()
        if part == "memory":
            return self.memory(training)
        begin = time.perf_counter()
        wait = None
        if part == "stall":
            wait = training.begin()
        else:
            getattr(training, part)()
        taken = (time.perf_counter() - begin) * 1e3
        if wait is not None:
            wait()
        dist.barrier()
        return {"ms": taken}

    def forget_others(self) -> None:
        """Gives back what other lanes have, on the disk too."""
        self.trainings.clear()
        gc.collect()
        dist.barrier()
        if dist.get_rank() == 0:
            for folder in self.place.iterdir():
                shutil.rmtree(folder)
        dist.barrier()

    def memory(self, training: Training) -> dict[str, Any]:
        """Of a save and a load."""
        answer = {}
        for part in ("save", "load"):
            before = share_bytes()
            peak = Peak()
            getattr(training, part)()
            answer[part] = peak.bytes() - before
            peak.stop()
            gc.collect()
        return answer


if __name__ == "__main__":
    (task, size, place), member = this_member()
    with joined("farandole", member):
        member.serve(Rank(task, size, Path(place)).answer)
