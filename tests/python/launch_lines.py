# SPDX-License-Identifier: Apache-2.0
"""The commands in docs/bench.md, and how many ranks each starts."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "bench.md"


def launch_lines(page: Path = PAGE) -> list[list[str]]:
    """The words of each command in the page's blocks."""
    fences = re.findall(r"^```(\w*)\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    blocks = [block for language, block in fences if not language]
    return [shlex.split(line) for block in blocks for line in block.strip().splitlines()]


def bench_lines(what: str) -> list[list[str]]:
    """What follows `bench <what>` in each line of the page."""
    found = []
    for words in launch_lines():
        if "bench" in words and words[words.index("bench") + 1] == what:
            found.append(words)
    return found


def ranks_of(words: list[str]) -> tuple[int, int]:
    """Hosts and ranks that a launch line starts, as its launcher's own options say."""
    options = dict(word.removeprefix("--").split("=") for word in words if "=" in word)
    if words[0] == "torchrun":
        from torch.distributed.run import get_args_parser

        parsed = get_args_parser().parse_args(words[1:])
        hosts = int(parsed.nnodes.partition(":")[0])
        assert parsed.module
        assert parsed.training_script == "farandole"
        assert "--standalone" in words if hosts == 1 else parsed.master_addr
        return hosts, hosts * int(parsed.nproc_per_node)
    if words[0] == "srun":
        hosts = int(options["nodes"])
        assert options["ntasks-per-node"] == options["gpus-per-node"]
        return hosts, hosts * int(options["ntasks-per-node"])
    count = int(words[words.index("-n") + 1])
    if "--host" in words:
        places = words[words.index("--host") + 1].split(",")
        assert count == sum(int(place.split(":")[1]) for place in places)
        return len(places), count
    return count // 8, count
