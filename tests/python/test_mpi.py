# SPDX-License-Identifier: Apache-2.0
"""Training under mpirun: MPI's own collectives, and hosts that MPI joins."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from farandole import _C

import small_task

pytestmark = pytest.mark.system

STEPS = 6
TRAINING = """
import json, farandole, torch
from farandole import DistributedDataParallel, ZeroRedundancyOptimizer
import small_task

farandole.init_process_group(timeout=60)
rank, world_size = farandole.rank(), farandole.world_size()
model = DistributedDataParallel(small_task.network(0))
optimizer = ZeroRedundancyOptimizer(model.parameters(), torch.optim.Adam, lr=0.01)
x, y = small_task.share_of(rank, world_size, torch.float32)
for step in range({steps}):
    optimizer.zero_grad()
    (model(x) - y).square().mean().backward()
    optimizer.step()
halves = torch.full((5,), rank + 1.0, dtype=torch.bfloat16)
farandole.all_reduce(halves)
result = {{"loss": small_task.final_loss(model.module), "halves": halves.tolist()}}
# one write: ranks share the pipe
print("result " + json.dumps(result) + "\\n", end="", flush=True)
{end}
"""


def has_mpi() -> bool:
    return any(backend.name == "mpi" and backend.built for backend in _C.backends())


BACKEND = {"FARANDOLE_BACKEND": "mpi"}
LINK = {"FARANDOLE_LINK": "mpi", "FARANDOLE_NETWORK_INTERFACE": "lo"}


def run(
    tmp_path: Path, code: str, *launcher: str, settings: dict[str, str] = BACKEND
) -> subprocess.CompletedProcess[str]:
    script = tmp_path / "script.py"
    script.write_text(code)
    return subprocess.run(
        [*launcher, sys.executable, str(script)],
        env={
            **os.environ,
            **settings,
            "OMP_NUM_THREADS": "1",
            "PYTHONPATH": str(Path(__file__).parent),
        },
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def results_of(done: subprocess.CompletedProcess[str]) -> list[Any]:
    """What the two ranks have printed after "result "."""
    lines = [line for line in done.stdout.splitlines() if line.startswith("result ")]
    results = [json.loads(line.removeprefix("result ")) for line in lines]
    assert len(results) == 2, done.stdout + done.stderr
    return results


@pytest.fixture
def mpirun() -> list[str]:
    command = shutil.which("mpirun") or str(Path(sys.executable).parent / "mpirun")
    if not has_mpi() or not Path(command).exists():
        pytest.skip("Farandole is built without MPI, or mpirun is not installed")
    return [command, "--allow-run-as-root", "--oversubscribe", "-n", "2"]


def one_process() -> float:
    """The same training on all rows."""
    model = small_task.network(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    x, y = small_task.task()
    for _ in range(STEPS):
        optimizer.zero_grad()
        (model(x) - y).square().mean().backward()
        optimizer.step()
    return small_task.final_loss(model)


@pytest.mark.parametrize(
    ("begin", "end"),
    [
        ("", "farandole.destroy()"),
        ("from mpi4py import MPI", "# mpi4py finalizes MPI while the group is there"),
    ],
)
def test_training_is_that_of_one_process(
    tmp_path: Path, mpirun: list[str], begin: str, end: str
) -> None:
    if begin:
        pytest.importorskip("mpi4py")
    code = begin + TRAINING.format(steps=STEPS, end=end)
    done = run(tmp_path, code, *mpirun)
    assert done.returncode == 0, done.stdout + done.stderr
    results = results_of(done)
    assert results[0] == results[1]
    assert results[0]["halves"] == [3.0] * 5
    assert results[0]["loss"] == pytest.approx(one_process(), rel=1e-4)


def test_training_on_hosts_that_mpi_joins(tmp_path: Path, mpirun: list[str]) -> None:
    begin = "import os; os.environ['FARANDOLE_HOST_ID'] = os.environ['OMPI_COMM_WORLD_RANK']"
    done = run(tmp_path, begin + TRAINING.format(steps=STEPS, end=""), *mpirun, settings=LINK)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "2 hosts (1 and 1): shared memory within a host, MPI between hosts" in done.stderr
    results = results_of(done)
    assert [each["halves"] for each in results] == [[3.0] * 5] * 2
    assert results[0]["loss"] == results[1]["loss"] == pytest.approx(one_process(), rel=1e-4)


FINALIZED = """
import os, farandole, torch
from mpi4py import MPI
os.environ["FARANDOLE_HOST_ID"] = os.environ["OMPI_COMM_WORLD_RANK"]
farandole.init_process_group(timeout=20)
farandole.all_reduce(torch.ones(1000))
MPI.Finalize()
try:
    farandole.all_reduce(torch.ones(1000))
except farandole.CommError as error:
    print(f"{type(error).__name__} {list(error.ranks)}\\n", end="", flush=True)
"""


def test_nobody_is_blamed_where_mpi_was_finalized(tmp_path: Path, mpirun: list[str]) -> None:
    pytest.importorskip("mpi4py")
    done = run(tmp_path, FINALIZED, *mpirun, settings=LINK)
    told = sorted(done.stdout.splitlines())
    assert told == ["AbortedError [0]", "AbortedError [1]"], done.stdout + done.stderr


ALONE = """
import farandole
try:
    farandole.init_process_group(timeout=30)
except farandole.NotSupported as error:
    print("refused", error, flush=True)
"""


@pytest.mark.parametrize("settings", [BACKEND, LINK])
def test_torchrun_is_told_to_be_mpirun(tmp_path: Path, settings: dict[str, str]) -> None:
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    begin = "import os; os.environ['FARANDOLE_HOST_ID'] = os.environ['RANK']"
    code = (begin if settings is LINK else "") + ALONE
    done = run(tmp_path, code, *torchrun, "--no-python", settings=settings)
    expected = "not processes of one MPI job" if has_mpi() else "pip install farandole[mpi]"
    assert done.stdout.count("refused") == 2, done.stdout + done.stderr
    assert expected in done.stdout


INTERRUPTED = """
import os, pathlib, signal, threading, time
import farandole, torch

farandole.init_process_group(timeout=60)
done = pathlib.Path("{done}")
farandole.barrier()
if farandole.rank() == 0:
    threading.Timer(0.5, os.kill, (os.getpid(), signal.SIGINT)).start()
    try:
        {wait}
    except KeyboardInterrupt as error:
        print("told", error, flush=True)
    try:
        farandole.barrier()
    except farandole.AbortedError:
        print("is over", flush=True)
    done.touch()
else:
    while not done.exists():
        time.sleep(0.01)
    try:
        farandole.barrier()
    except farandole.AbortedError as error:
        assert "interrupted by Ctrl-C" in str(error), error
        print("peer knows", flush=True)
"""


@pytest.mark.parametrize("wait", ["farandole.barrier()", "farandole.recv(torch.ones(1), src=1)"])
def test_ctrl_c_ends_a_wait(wait: str, mpirun: list[str], tmp_path: Path) -> None:
    code = INTERRUPTED.format(done=tmp_path / "done", wait=wait)
    result = run(tmp_path, code, *mpirun)
    assert "was interrupted by Ctrl-C" in result.stdout, result.stdout + result.stderr
    assert "is over" in result.stdout
    assert "peer knows" in result.stdout, result.stdout + result.stderr


CROSSED = """
import json, farandole
import test_ddp_errors as cases

farandole.init_process_group(timeout=60)
text = cases.{case}
print("result " + json.dumps([farandole.rank(), text]) + "\\n", end="", flush=True)
"""


def told_by_rank(tmp_path: Path, mpirun: list[str], case: str) -> list[Any]:
    told = dict(results_of(run(tmp_path, CROSSED.format(case=case), *mpirun)))
    return [told[0], told[1]]


@pytest.mark.parametrize(
    "operation", ["barrier", "all_reduce", "caught, all_reduce", "asynchronous all_reduce"]
)
def test_ranks_that_wait_for_each_other_are_told(
    operation: str, mpirun: list[str], tmp_path: Path
) -> None:
    """With "barrier", only after groups at different paces have gone well."""
    texts = told_by_rank(tmp_path, mpirun, f"one_batch_less(farandole.rank(), 2, {operation!r})")
    for rank, text in enumerate(texts):
        assert "wait for each other" in text, text
        assert f"rank {1 - rank} (pid" in text
        assert "in group 'default'" in text
        assert "group 'default/ddp'" in text


@pytest.mark.parametrize("call", ["new_group()", "DistributedDataParallel()"])
def test_ranks_of_which_one_makes_a_group_are_told(
    call: str, mpirun: list[str], tmp_path: Path
) -> None:
    case = f"one_batch_less_before_a_group(farandole.rank(), 2, {call!r}, {str(tmp_path)!r})"
    texts = told_by_rank(tmp_path, mpirun, case)
    assert all("wait for each other" in text for text in texts), texts
    assert f"{call} on rank 1 of 2" in texts[1]
    assert "a call that forms a group" in texts[0]


def test_a_group_may_form_while_a_rank_is_in_a_collective(
    mpirun: list[str], tmp_path: Path
) -> None:
    case = "group_beside_a_thread(farandole.rank(), 2)"
    assert told_by_rank(tmp_path, mpirun, case) == [None, None]


LEFT = """
import farandole, torch.distributed as dist

farandole.init_process_group(timeout=60)
farandole.barrier()
if farandole.rank() == 1:
    farandole.destroy()
else:
    try:
        dist.new_group([0, 1])
    except farandole.PeerFailure as error:
        print("told", error, flush=True)
"""


def test_a_rank_that_has_left_is_named_while_a_group_forms(
    mpirun: list[str], tmp_path: Path
) -> None:
    done = run(tmp_path, LEFT, *mpirun)
    assert "without calling new_group()" in done.stdout, done.stdout + done.stderr
