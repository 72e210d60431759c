# SPDX-License-Identifier: Apache-2.0
"""run_function(): functions of a program on ranks that `farandole run` starts."""

from __future__ import annotations

import io
import os
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import farandole
import pytest
from farandole.run.function import RankError, run_function
from farandole.run.function_meeting import Meeting

import warm_python
from run_command import DEADLINE_S, environment, script, wait_until_gone
from test_run_hosts import needs_mpirun

EXAMPLE = Path(__file__).parents[2] / "examples" / "run" / "function.py"


def run(function: Callable[..., Any], *args: Any, ranks: int = 2, **options: Any) -> list[Any]:
    python = str(warm_python.executable())
    return run_function(function, args, ranks=ranks, python=python, **options)


@pytest.mark.system
def test_results_come_back_in_the_order_of_ranks() -> None:
    def function(base: int) -> tuple[int, str, object]:
        class Local:
            value = base

        print("from rank", os.environ["RANK"])
        return base + int(os.environ["RANK"]), os.environ["EXTRA"], Local

    output = io.StringIO()
    found = run(function, 10, ranks=3, variables={"EXTRA": "given"}, output=output)
    assert [(number, extra) for number, extra, _ in found] == [(10 + r, "given") for r in range(3)]
    assert found[0][2].value == 10
    for rank in range(3):
        assert f"[{rank}] from rank {rank}\n" in output.getvalue()


@pytest.mark.system
def test_ranks_train_together() -> None:
    def function() -> float:
        import torch

        farandole.init_process_group()
        tensor = torch.tensor([1.0 + farandole.rank()])
        farandole.all_reduce(tensor, op="sum")
        return tensor.item()

    assert run(function, output=io.StringIO()) == [3.0, 3.0]


@pytest.mark.system
def test_results_of_an_elastic_job_are_those_of_the_ranks_that_returned() -> None:
    def function() -> tuple[int, int]:
        begun = int(os.environ["RANK"])

        def train(_state: object) -> tuple[int, int]:
            if farandole.world_size() == 3 and begun == 0:
                os.kill(os.getpid(), signal.SIGKILL)
            farandole.barrier()
            return begun, farandole.rank()

        farandole.init_process_group()
        loop = farandole.elastic.run(train)
        result: tuple[int, int] = loop(farandole.elastic.TorchState())
        return result

    found = run(function, ranks=3, options=["--min-ranks", "2"], output=io.StringIO())
    assert {begun for begun, _ in found} == {1, 2}
    assert [rank for _, rank in found] == [0, 1]


@pytest.mark.system
def test_a_result_that_cannot_be_made_again_is_told() -> None:
    def function() -> object:
        class Broken:
            def __reduce__(self) -> tuple[type[int], tuple[str]]:
                return int, ("no number",)

        return Broken()

    with pytest.raises(RankError, match="the result of rank 0 cannot be made") as caught:
        run(function)
    assert caught.value.ranks == (0,)


@pytest.mark.system
def test_what_a_rank_raises_comes_back_with_its_traceback() -> None:
    def function() -> None:
        farandole.init_process_group()
        if farandole.rank() == 1:
            raise ValueError("bad batch")
        farandole.barrier()

    output = io.StringIO()
    with pytest.raises(RankError, match="rank 1 of 2 raised ValueError: bad batch") as caught:
        run(function, output=output)
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, ValueError)
    assert "in function\n" in str(caught.value)
    assert "ValueError: bad batch" in output.getvalue()


@pytest.mark.system
@pytest.mark.parametrize(
    ("end", "how"),
    [("os.kill(os.getpid(), 9)", "killed by SIGKILL"), ("sys.exit(3)", "exit status 3")],
)
def test_a_rank_that_ends_is_named(end: str, how: str) -> None:
    def function(end: str) -> None:
        if os.environ["RANK"] == "1":
            exec(f"import os, sys; {end}")
        time.sleep(60)

    began = time.monotonic()
    with pytest.raises(RankError, match="rank 1 of 2 failed: ") as caught:
        run_function(function, (end,), ranks=2, output=io.StringIO())
    assert how in str(caught.value)
    assert caught.value.rank == 1
    assert time.monotonic() - began < DEADLINE_S


@pytest.mark.system
def test_what_cannot_be_brought_is_told_on_both_ways() -> None:
    with pytest.raises(farandole.InvalidArgument, match=r"\[function-pickle\]"):
        run(threading.Lock().acquire)
    with pytest.raises(RankError, match=r"rank 0 of 1 raised .*the function returned lock"):
        run(threading.Lock, ranks=1, output=io.StringIO())
    with pytest.raises(farandole.InvalidArgument, match="-n was '0'"):
        run(print, ranks=0)
    with pytest.raises(farandole.InvalidArgument, match=r"\[ranks-exceed-hosts\]"):
        run(print, ranks=3, options=["--hosts", "localhost:2"])


@pytest.mark.system
def test_a_rank_that_cannot_begin_is_named(tmp_path: Path) -> None:
    python = script(tmp_path, f'[ "$RANK" = 1 ] && exit 5; exec {warm_python.executable()} "$@"')
    with pytest.raises(RankError, match="rank 1 of 2 failed: exit status 5") as caught:
        run_function(time.sleep, (60,), ranks=2, python=str(python), output=io.StringIO())
    assert caught.value.rank == 1


SSH = """
while [ "$1" != other ]; do shift; done
export FARANDOLE_HOST_ID=$1
shift
exec env -u FARANDOLE_FUNCTION_KEY -u FARANDOLE_FUNCTION_ADDRESS sh -c "$*"
"""


@pytest.mark.system
@needs_mpirun
def test_ranks_on_other_hosts_get_the_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARANDOLE_NETWORK_INTERFACE", "lo")
    agent = script(tmp_path, SSH, name="ssh")
    found = run(
        len,
        "x" * 3_000_000,
        options=[
            *("--hosts", "localhost:1,other:1"),
            *("--mpirun-args", f"--prtemca plm_ssh_agent {agent}"),
        ],
        output=io.StringIO(),
    )
    assert found == [3_000_000] * 2


def test_strangers_are_turned_away() -> None:
    meeting = Meeting(b"secret")
    try:
        (address,) = (name for name in meeting.variables().values() if name.startswith("@"))
        with socket.socket(socket.AF_UNIX) as stranger:
            stranger.settimeout(DEADLINE_S)
            stranger.connect("\0" + address[1:])
            asked = stranger.recv(1000)
            assert b"#CHALLENGE#" in asked
            stranger.sendall(b"\0\0\0\x10" + bytes(16))
            answer = b"".join(iter(lambda: stranger.recv(1000), b""))
        assert b"secret" not in answer
        assert meeting.reports(DEADLINE_S) == []
    finally:
        meeting.close()


INTERRUPTED = """
import os, sys, time
from farandole.run.function import run_function

def function():
    print("ready", os.getpid(), flush=True)
    time.sleep(60)

run_function(function, ranks=2, python=sys.argv[1])
"""


@pytest.mark.system
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_nothing_is_left_of_a_program_that_is_ended(tmp_path: Path, number: signal.Signals) -> None:
    program = tmp_path / "program.py"
    program.write_text(INTERRUPTED)
    started = subprocess.Popen(
        [sys.executable, str(program), str(warm_python.executable())],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert started.stdout
    pids: list[int] = []
    while len(pids) < 2:
        line = started.stdout.readline()
        assert line
        pids += [int(line.split()[-1])] if " ready " in line else []
    started.send_signal(number)
    started.communicate(timeout=DEADLINE_S)
    wait_until_gone(pids)


@pytest.mark.system
def test_it_works_from_an_interactive_interpreter() -> None:
    """Functions typed there belong to no file."""
    typed = (
        "from farandole.run.function import run_function\n"
        "import os\n"
        "def function(): return os.environ['RANK'] + helper()\n"
        "\n"
        "def helper(): return '!'\n"
        "\n"
        f"run_function(function, ranks=2, python={str(warm_python.executable())!r})\n"
    )
    done = subprocess.run(
        [sys.executable, "-i"],
        input=typed,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert "['0!', '1!']" in done.stdout, done.stderr


@pytest.mark.system
def test_the_example() -> None:
    done = subprocess.run(
        [sys.executable, str(EXAMPLE)],
        env=environment(),
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert "both ranks have the sum" in done.stdout, done.stderr
