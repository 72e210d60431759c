# SPDX-License-Identifier: Apache-2.0
"""`farandole run --from-sagemaker`: the estimator's arguments and the container's variables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import farandole
import pytest
from farandole.run.command_line import _parse, job_of, make_parser
from farandole.run.job import Job
from farandole.run.sagemaker import read_job

import run_command

REPOSITORY = Path(__file__).parents[2]
SMDDP = {"smdistributed": {"dataparallel": {"enabled": True}}}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in ("SM_HOSTS", "SM_CURRENT_HOST", "SM_NUM_GPUS", "SM_HPS", "SM_USER_ENTRY_POINT"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "train.py").touch()


def job(description: Any, *arguments: str) -> Job:
    Path("job.json").write_text(json.dumps(description))
    return job_of(_parse(make_parser(), ["--from-sagemaker", "job.json", *arguments]))


def refusal(description: Any, *arguments: str) -> str:
    with pytest.raises(farandole.Error) as error:
        job(description, *arguments)
    return str(error.value)


def test_a_job_on_this_host() -> None:
    found = job(
        {
            "entry_point": "train.py",
            "hyperparameters": {"lr": 0.1, "batch-size": 64, "e": "two words", "amp": True},
            "distribution": SMDDP,
            "instance_count": 1,
            "instance_type": "ml.p3.16xlarge",
            "role": "me",
            "SM_NUM_GPUS": 8,
            "environment": {"NAME": "value"},
            "inputs": {"train": "data"},
        }
    )
    assert found.command[1:] == [
        *("train.py", "--amp", "true", "--batch-size", "64", "-e", "two words", "--lr", "0.1")
    ]
    assert found.ranks == 8
    assert found.placed == {}
    assert found.nodes is None
    assert found.notes == ["without effect here: instance_type, role"]
    assert found.variables["NAME"] == "value"
    assert found.variables["SM_CHANNEL_TRAIN"] == str(Path("data").absolute())
    assert found.variables["SM_HP_BATCH_SIZE"] == "64"
    assert json.loads(found.variables["SM_HPS"])["lr"] == 0.1
    parameters = json.loads(found.variables["SM_FRAMEWORK_PARAMS"])
    assert parameters == {"sagemaker_distributed_dataparallel_enabled": True}


def test_the_command_line_counts_before_the_file() -> None:
    found = job(
        {"entry_point": "other.py", "hyperparameters": {"x": 1}, "SM_NUM_GPUS": 8},
        *("-n", "3", "train.py", "--own"),
    )
    assert found.command[1:] == ["train.py", "--own", "-x", "1"]
    assert found.ranks == 3


def test_the_environment_counts_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SM_HOSTS", '["algo-1", "algo-2"]')
    monkeypatch.setenv("SM_CURRENT_HOST", "algo-2")
    monkeypatch.setenv("SM_NUM_GPUS", "4")
    monkeypatch.setenv("SM_HPS", '{"epochs": 3}')
    monkeypatch.setenv("SM_USER_ENTRY_POINT", "train.py")
    found = job({"distribution": {"torch_distributed": {"enabled": True}}})
    assert found.command[1:] == ["train.py", "--epochs", "3"]
    assert found.nodes is not None
    nodes = found.nodes
    assert (nodes.count, nodes.rank, nodes.master_address) == (2, 1, "algo-1")
    assert (found.ranks, found.world_size) == (4, 8)
    assert job({"distribution": SMDDP, "SM_CURRENT_HOST": "algo-1"}).nodes.rank == 0


def test_without_a_current_host_mpirun_starts_all() -> None:
    mpi = {"enabled": True, "processes_per_host": 2, "custom_mpi_options": "--verbose -x A=1 --tag"}
    hosts = {"SM_HOSTS": ["h1", "h2"], "instance_count": 2}
    found = job({"entry_point": "train.py", "distribution": {"mpi": mpi}, **hosts})
    assert found.placed == {"h1": 2, "h2": 2}
    assert found.mpirun_arguments == ["--tag"]
    assert found.variables["A"] == "1"
    assert found.notes == ["without effect here: --verbose"]
    here = job({"entry_point": "train.py", **hosts}, "--hosts", "here:3")
    assert here.placed == {"here": 3}


def test_without_a_distribution_there_is_one_rank() -> None:
    assert job({"entry_point": "train.py", "SM_NUM_GPUS": 8}).ranks == 1
    off = {"pytorchddp": {"enabled": False}}
    assert job({"entry_point": "train.py", "distribution": off}).ranks == 1


@pytest.mark.parametrize(
    ("description", "text"),
    [
        ({"entry_point": "train.py", "instance_cuont": 2}, "has instance_cuont"),
        ({"distribution": {"horovod": {"enabled": True}}}, "distribution: horovod"),
        ({"distribution": {"mpi": {"enabled": True, "processes": 2}}}, "distribution: processes"),
        ({"distribution": {**SMDDP, "mpi": {"enabled": True}}}, "smdistributed and mpi"),
        ({"distribution": {"parameter_server": {"enabled": True}}}, "parameter_server is not off"),
        ({"distribution": {"smdistributed": {"modelparallel": {"enabled": True}}}}, "whole models"),
        ({"distribution": SMDDP}, "sagemaker-program"),
        ({"instance_count": 2}, "sagemaker-hosts"),
        ({"SM_HOSTS": ["a", "b"], "SM_CURRENT_HOST": "c"}, "SM_CURRENT_HOST=c"),
        ({"SM_HOSTS": "no json"}, "sagemaker-file"),
        ({"inputs": {"train": "s3://bucket"}}, "aws s3 sync"),
        ([1], "it has a list"),
        ({"instance_count": "two"}, "sagemaker-file"),
        ({"hyperparameters": ["lr"]}, "sagemaker-file"),
        ({"hyperparameters": [1]}, "sagemaker-file"),
        ({"instance_count": 0}, "sagemaker-hosts"),
        ({"distribution": "smddp"}, "sagemaker-file"),
        (
            {"entry_point": "train.py", "distribution": {"mpi": {"enabled": True,
             "custom_mpi_options": "--mca btl tcp"}}},
            "--mca btl tcp",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(description: Any, text: str) -> None:
    assert text in refusal(description)


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(farandole.InvalidArgument, match=r"(?s)none\.json.*No such file"):
        read_job(tmp_path / "none.json", {})


def test_the_example_starts_two_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(REPOSITORY)
    done = run_command.run("--from-sagemaker", "examples/sagemaker/job.json")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "without effect here: instance_type" in done.stderr
    assert "2 ranks started by torchrun" in done.stderr
    assert "[0] epoch 1: training loss" in done.stdout
    assert "epoch 2" not in done.stdout
