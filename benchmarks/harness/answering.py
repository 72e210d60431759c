# SPDX-License-Identifier: Apache-2.0
"""How a rank in Python takes questions: a line each way, the answer in JSON.

Between two questions it sleeps in recv(), so that it takes no core from what is measured.
"""

import json
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

Answer = Callable[[list[str]], Mapping[str, object]]  # to the words of a question


@dataclass(frozen=True)
class Member:
    """A rank of a set, and where it meets the others and the process that asks."""

    path: str  # of the socket
    folder: str  # where all ranks meet
    rank: int
    world_size: int

    def serve(self, answer: Answer) -> None:
        """Answers who listens at `path` until it hangs up."""
        with socket.socket(socket.AF_UNIX) as driver:
            driver.connect(self.path)
            driver.sendall(f"{self.rank}\n".encode())
            for line in driver.makefile():
                driver.sendall(json.dumps(answer(line.split())).encode() + b"\n")


def this_member() -> tuple[list[str], Member]:
    """Of the last arguments of this process, SOCKET FOLDER RANK WORLD_SIZE; and those before."""
    *arguments, path, folder, rank, world_size = sys.argv[1:]
    return arguments, Member(path, folder, int(rank), int(world_size))
