# SPDX-License-Identifier: Apache-2.0
"""run_function(): functions of a program on ranks that `farandole run` starts."""

from __future__ import annotations

import contextlib
import io
import os
import resource
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any

import farandole
import pytest
from farandole import job_secret
from farandole.run import function_meeting
from farandole.run.connecting import connect_to
from farandole.run.function import RankError, run_function
from farandole.run.function_meeting import Meeting, Outcome

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
echo "$*" >> "$0.lines"
while [ "$1" != other ]; do shift; done
export FARANDOLE_HOST_ID=$1
shift
exec env -u FARANDOLE_JOB_SECRET -u FARANDOLE_FUNCTION_ADDRESS sh -c "$*"
"""


@pytest.mark.system
@needs_mpirun
def test_ranks_on_other_hosts_get_the_function(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FARANDOLE_NETWORK_INTERFACE", "lo")
    agent = script(tmp_path, SSH, name="ssh")

    def function(text: str) -> tuple[int, str]:
        return len(text), os.environ["FARANDOLE_JOB_SECRET"]

    found = run(
        function,
        "x" * 3_000_000,
        options=[
            *("--hosts", "localhost:1,other:1"),
            *("--mpirun-args", f"--prtemca plm_ssh_agent {agent}"),
        ],
        output=io.StringIO(),
    )
    assert [length for length, _ in found] == [3_000_000] * 2
    ((_, secret), (_, same)) = found
    assert secret == same
    assert secret not in Path(f"{agent}.lines").read_text()  # others see command lines


@pytest.fixture
def meeting() -> Iterator[Meeting]:
    with contextlib.closing(Meeting(b"payload")) as found:
        yield found


def place_of(meeting: Meeting) -> str:
    (place,) = (name for name in meeting.variables().values() if name.startswith("@"))
    return place


def call(meeting: Meeting) -> socket.socket:
    """A connection that proves nothing yet."""
    end = socket.socket(socket.AF_UNIX)
    end.settimeout(DEADLINE_S)
    end.connect("\0" + place_of(meeting)[1:])
    return end


def read_to_end(end: socket.socket) -> bytes:
    with contextlib.suppress(ConnectionResetError):
        return b"".join(iter(lambda: end.recv(1000), b""))
    return b""


def take_part(meeting: Meeting) -> None:
    """Is a rank that gets the function and returns."""
    with connect_to(place_of(meeting), meeting.secret) as rank:
        rank.send(("rank", 0, os.getpid(), "here"))
        assert rank.recv() is None
        assert rank.recv_bytes() == b"payload"
        rank.send(Outcome(b"result"))


def test_strangers_are_turned_away(meeting: Meeting) -> None:
    with call(meeting) as one, call(meeting) as other:
        nonces = [end.recv(32) for end in (one, other)]
        assert len({*nonces, bytes(32)}) == 3
        one.sendall(bytes(64))
        assert read_to_end(one) == b""
        # What another one is asked, and the proof of the end that listens, prove nothing.
        mine = bytes(32)
        code = job_secret.code(meeting.secret, "run_function", b"listener", nonces[1], mine)
        other.sendall(mine + code)
        assert read_to_end(other) == b""
    assert meeting.reports(DEADLINE_S) == []


def test_a_proof_cannot_be_used_again(meeting: Meeting) -> None:
    with call(meeting) as rank:
        asked = rank.recv(32)
        mine = bytes(32)
        said = mine + job_secret.code(meeting.secret, "run_function", b"caller", asked, mine)
        rank.sendall(said)
        proof = job_secret.code(meeting.secret, "run_function", b"listener", asked, mine)
        assert rank.recv(1000) == proof
    with call(meeting) as again:
        again.recv(32)
        again.sendall(said)
        assert read_to_end(again) == b""


def test_ranks_do_not_talk_to_strangers() -> None:
    name = f"test-{os.getpid()}-{time.monotonic_ns()}"
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind("\0" + name)
        listener.listen()

        def answer() -> None:
            with listener.accept()[0] as end:
                end.sendall(bytes(32))
                end.recv(64, socket.MSG_WAITALL)
                end.sendall(bytes(32))

        thread = threading.Thread(target=answer)
        thread.start()
        with pytest.raises(AuthenticationError):
            connect_to(f"@{name}", job_secret.make())
        thread.join()


def forked(body: Callable[[], int]) -> int:
    """The pid of a process that ends with what ``body`` returns, or with 99 if it raises."""
    pid = os.fork()
    if pid == 0:
        status = 99
        try:
            status = body()
        finally:
            os._exit(status)
    return pid


@pytest.mark.skipif(os.geteuid() != 0, reason="becomes another user")
def test_another_user_is_not_heard(meeting: Meeting) -> None:
    def hear() -> int:
        os.setuid(65534)
        with call(meeting) as end:
            return len(read_to_end(end))

    assert os.waitpid(forked(hear), 0)[1] == 0


def test_slow_strangers_are_given_up(meeting: Meeting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(function_meeting, "_PROOF_S", 0.5)
    with call(meeting) as slow:
        ended = threading.Event()
        thread = threading.Thread(target=lambda: (read_to_end(slow), ended.set()))
        thread.start()
        with contextlib.suppress(OSError):
            while not ended.wait(0.05):  # each byte in time, all of them not
                slow.send(b"x")
        thread.join(DEADLINE_S)
        assert ended.is_set()


def test_many_strangers_do_not_keep_ranks_away(meeting: Meeting) -> None:
    """They hold more connections than this process may have open."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    few = len(list(Path("/proc/self/fd").iterdir())) + 60
    reading, writing = os.pipe()

    def hold() -> int:
        resource.setrlimit(resource.RLIMIT_NOFILE, (min(2000, hard), hard))
        held = []
        while len(held) < 1200:
            with contextlib.suppress(BlockingIOError):  # the queue is full
                held.append(call(meeting))
        os.write(writing, b"x" * bool(held))
        time.sleep(DEADLINE_S)
        return 0

    strangers = forked(hold)
    os.close(writing)
    resource.setrlimit(resource.RLIMIT_NOFILE, (few, hard))
    try:
        assert os.read(reading, 1) == b"x"
        take_part(meeting)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        os.kill(strangers, signal.SIGKILL)
        os.waitpid(strangers, 0)
        os.close(reading)
    take_part(meeting)
    (report,) = meeting.reports(DEADLINE_S)
    assert report.outcome == Outcome(b"result")


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
