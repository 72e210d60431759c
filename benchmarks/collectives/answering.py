# SPDX-License-Identifier: Apache-2.0
"""How a rank in Python takes questions from run.py: a line each way, the answer in JSON.

Between two questions it sleeps in recv(), so that it takes no core from what is measured.
"""

import json
import socket
from collections.abc import Callable, Mapping

Answer = Callable[[list[str]], Mapping[str, object]]  # to the words of a question


def serve(rank: int, path: str, answer: Answer) -> None:
    """Answers run.py, which listens at `path`, until it hangs up."""
    with socket.socket(socket.AF_UNIX) as driver:
        driver.connect(path)
        driver.sendall(f"{rank}\n".encode())
        for line in driver.makefile():
            driver.sendall(json.dumps(answer(line.split())).encode() + b"\n")
