# SPDX-License-Identifier: Apache-2.0
"""The backend "smddp", and the examples of both versions, beside one process."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from farandole_compat import finder
from torch import nn

import ranks
import run_command

EXAMPLES = Path(__file__).parents[2] / "examples" / "sagemaker"


def over_smddp(rank: int, world_size: int, folder: str) -> None:
    os.environ.update(RANK=str(rank), WORLD_SIZE=str(world_size))
    os.environ.update(LOCAL_RANK=str(rank), LOCAL_WORLD_SIZE=str(world_size))
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT="29500")
    finder.install()
    import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401

    assert os.environ["SMDATAPARALLEL_LOCAL_RANK"] == str(rank)
    dist.init_process_group(
        backend="smddp", init_method=f"file://{folder}/store", rank=rank, world_size=world_size
    )
    assert dist.get_backend() == "smddp"
    # What it could not do there.
    tensor = torch.tensor([1.0 + rank])
    dist.all_reduce(tensor, op=dist.ReduceOp.AVG)
    assert tensor.item() == 1.5
    gathered = torch.empty(2)
    dist.all_gather_into_tensor(gathered, torch.tensor([float(rank)]))  # _allgather_base
    assert gathered.tolist() == [0, 1]
    part = torch.empty(1)
    dist.reduce_scatter_tensor(part, torch.tensor([1.0, 10.0]))
    assert part.item() == (2 if rank == 0 else 20)
    half = dist.new_group([rank], use_local_synchronization=True)  # no group but WORLD there
    assert dist.get_world_size(half) == 1

    import farandole

    assert farandole.init_process_group() is dist.group.WORLD
    norm = farandole.SyncBatchNorm.convert_sync_batchnorm(nn.BatchNorm1d(1, affine=False))
    model = farandole.DistributedDataParallel(nn.Sequential(nn.Linear(1, 1), norm))
    with torch.no_grad():
        model.module[0].weight.fill_(1)
        model.module[0].bias.zero_()
    output = model(torch.tensor([[1.0], [2.0]]) + 2 * rank)  # 1, 2, 3, 4 together
    torch.testing.assert_close(output.detach().sum(), torch.tensor([-1.7888, 1.7888][rank]),
                               rtol=1e-3, atol=1e-3)  # fmt: skip
    dist.destroy_process_group()


def test_the_backend(tmp_path: Path) -> None:
    ranks.run(over_smddp, 2, str(tmp_path), setup=ranks.Setup(backend=None))


def shown(done: object) -> list[str]:
    """Lines of rank 0, without what launchers and logs add."""
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.removeprefix("[0] ") for line in done.stdout.splitlines()]
    return [line for line in lines if "INFO" not in line]


@pytest.mark.system
def test_a_script_of_version_1_trains_on_two_ranks_as_on_one(tmp_path: Path) -> None:
    script = EXAMPLES / "smddp_v1.py"
    assert "farandole" not in re.sub(r'""".*?"""', "", script.read_text(), flags=re.DOTALL)
    outputs = []
    for count in (1, 2):
        folder = tmp_path / str(count)
        folder.mkdir()
        arguments = ("-n", str(count), script, "--epochs", "2")
        outputs.append(shown(run_command.run(*arguments, SM_MODEL_DIR=str(folder))))
    assert outputs[0] == outputs[1]
    assert len(outputs[0]) == 2
    models = [torch.load(tmp_path / str(count) / "model.pt") for count in (1, 2)]
    for name, wanted in models[0].items():
        torch.testing.assert_close(models[1][name], wanted, rtol=1e-4, atol=1e-6)


@pytest.mark.system
def test_a_pretraining_with_accumulated_gradients(tmp_path: Path) -> None:
    script = EXAMPLES / "smddp_bert.py"
    assert "farandole" not in re.sub(r'""".*?"""', "", script.read_text(), flags=re.DOTALL)
    models, lines = [], []
    for count in (1, 2):
        folder = tmp_path / str(count)
        folder.mkdir()
        arguments = ("-n", str(count), script, "--max-steps", "10", "--output-dir", folder)
        lines.append(shown(run_command.run(*arguments)))
        models.append(torch.load(folder / "ckpt_10.pt"))
    assert lines[0] == lines[1]
    assert [line.partition(":")[0] for line in lines[0]] == ["step 5", "step 10"]
    for name, wanted in models[0]["model"].items():
        torch.testing.assert_close(models[1]["model"][name], wanted, rtol=1e-2, atol=2e-3)


@pytest.mark.system
def test_a_script_of_version_2(tmp_path: Path) -> None:
    script = EXAMPLES / "smddp_v2.py"
    assert "farandole" not in re.sub(r'""".*?"""', "", script.read_text(), flags=re.DOTALL)
    done = run_command.run("-n", "2", script)
    lines = done.stdout.splitlines()
    assert done.returncode == 0, done.stderr[-3000:]
    assert "[0] smddp: loss 0.000000, y = 3.000 x + 0.500" in lines
    assert "[1] rank 1 is rank 1 of its host" in lines


@pytest.mark.system
def test_a_script_of_version_2_under_mpirun() -> None:
    mpirun = Path(sys.executable).parent / "mpirun"
    command = [str(mpirun), "--allow-run-as-root", "--oversubscribe", "-n", "2", sys.executable]
    done = subprocess.run(
        [*command, str(EXAMPLES / "smddp_v2.py")],
        env=run_command.environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert "smddp: loss 0.000000, y = 3.000 x + 0.500" in done.stdout
    assert "rank 1 is rank 1 of its host" in done.stdout


@pytest.mark.system
def test_natively(tmp_path: Path) -> None:
    done = run_command.run("-n", "2", EXAMPLES / "smddp_native.py")
    assert "loss 0.000000" in shown(done)


@pytest.mark.parametrize(
    "name", ["smdistributed.modelparallel", "smdistributed.dataparallel.tensorflow"]
)
def test_what_is_not_offered_says_what_is(name: str) -> None:
    import importlib

    import farandole

    finder.install()
    with pytest.raises(farandole.NotSupported, match=r"(?s)not offered.*fix: .*sagemaker-absent"):
        importlib.import_module(name)
    with pytest.raises(ImportError):  # programs that try it go on
        importlib.import_module(name)
    assert name not in sys.modules
