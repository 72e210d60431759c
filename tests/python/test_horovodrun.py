# SPDX-License-Identifier: Apache-2.0
"""horovodrun and horovod.run(): Horovod's flags, mapped to `farandole run`."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import farandole
import horovod
import pytest
from farandole.horovod import command_line
from farandole.horovod.plan import Plan, plan_of
from farandole.run.function import RankError

import warm_python
from run_command import DEADLINE_S, environment, script
from test_run_hosts import needs_mpirun

SHOW = (
    'echo "rank $HOROVOD_RANK of $HOROVOD_SIZE, $HOROVOD_LOCAL_RANK of $HOROVOD_LOCAL_SIZE, '
    '$HOROVOD_CROSS_RANK of $HOROVOD_CROSS_SIZE"'
)


def horovodrun(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "horovod.runner.launch", *map(str, arguments)],
        env=environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def plan(*arguments: str) -> Plan:
    return plan_of(command_line.parse(["-np", "2", *arguments, "train.py"], "0"))


def test_flags_become_variables_of_the_ranks() -> None:
    found = plan(
        *("--fusion-threshold-mb", "10", "--cycle-time-ms", "2.5", "--cache-capacity", "512"),
        *("--timeline-filename", "t.json", "--timeline-mark-cycles", "--no-stall-check"),
        *("--stall-check-warning-time-seconds", "7", "--stall-check-shutdown-time-seconds", "9"),
        *("--thread-affinity", "0,1", "--start-timeout", "40", "--log-level", "debug", "--tcp"),
        *("--network-interface", "eth0", "--network-interfaces", "eth1,eth2"),
    )
    assert found.variables == {
        "HOROVOD_FUSION_THRESHOLD": "10485760",
        "HOROVOD_CYCLE_TIME": "2.5",
        "HOROVOD_CACHE_CAPACITY": "512",
        "HOROVOD_TIMELINE": "t.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_STALL_CHECK_TIME_SECONDS": "7",
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS": "9",
        "HOROVOD_THREAD_AFFINITY": "0,1",
        "HOROVOD_START_TIMEOUT": "40",
        "HOROVOD_LOG_LEVEL": "DEBUG",
        "FARANDOLE_LINK": "tcp",
        "NCCL_IB_DISABLE": "1",
        "FARANDOLE_NETWORK_INTERFACE": "eth0,eth1,eth2",
        "NCCL_SOCKET_IFNAME": "eth0,eth1,eth2",
        "FARANDOLE_RANKS_OF_HOSTS": "2",
    }
    assert (found.options, found.notes) == (["--no-bind"], [])


@pytest.mark.parametrize(
    "flags",
    [
        *("--disable-cache", "--autotune", "--autotune-log-file=x"),
        *("--autotune-warmup-samples=1", "--autotune-steps-per-sample=1"),
        *("--autotune-bayes-opt-max-samples=1", "--autotune-gaussian-process-noise=0.5"),
        *("--hierarchical-allreduce", "--hierarchical-allgather", "--torus-allreduce"),
        *("--mpi-threads-disable", "--num-nccl-streams=2", "--gloo-timeout-seconds=30"),
        *("--log-hide-timestamp", "--log-with-timestamp", "--timeline-mark-cycles"),
        *("--max-np=3", "--slots-per-host=2", "--elastic-timeout=1", "--reset-limit=1"),
        *("--ssh-port=22", "--gloo --mpi-args=x", "--gloo --binding-args=x"),
    ],
)
def test_flags_that_mean_nothing_are_named(flags: str) -> None:
    (note,) = plan(*flags.split()).notes
    named = flags.split()[-1].partition("=")[0].replace("--no-", "--")
    assert note.startswith(named.replace("log-hide", "log-with"))


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["train.py"], "number of ranks is not given"),
        (["-np", "0", "train.py"], "number of ranks is 0"),
        (["-np", "two", "train.py"], "argument -np/--num-proc: invalid int value"),
        (["-np", "2"], "horovodrun got no command"),
        (["-np", "2", "--host", "h1", "--fuse", "train.py"], "horovodrun-"),
        (["--cycletime-ms", "2", "-np", "2", "x"], "did you mean --cycle-time-ms?"),
        (["-np", "2", "--cycle-time-ms", "-1", "x"], "'-1' is no number of at least 0"),
        (["-np", "2", "--autotune-gaussian-process-noise", "2", "x"], "from 0 to 1"),
        (["-np", "2", "-H", "a:1", "--hostfile", "f", "x"], "not allowed with"),
        (["-np", "2", "--gloo", "--mpi", "x"], "not allowed with"),
        (["-np", "2", "--log-level", "loud", "x"], "invalid choice"),
        (["-np", "2", "--jsrun", "x"], "horovodrun got --jsrun"),
        (["-np", "3", "-H", "localhost:2", "x"], "ranks-exceed-hosts"),
        (["-np", "2", "-H", "a b", "x"], "hosts-malformed"),
        (["-np", "2", "--mpi", "--mpi-args", "'", "x"], "horovodrun-quotes"),
        (["-np", "2", "no-such-program"], "program-missing"),
        (["-np", "2", "--min-np", "3", "python"], "elastic-settings"),
        (["-np", "2", "--min-np", "1", "--max-np", "1", "python"], "elastic-settings"),
        (["-np", "2", "--min-np", "1", "--slots-per-host", "0", "python"], "--slots-per-host"),
        (["-np", "2", "--config-file", "/none", "x"], "it cannot be read"),
    ],
)
def test_wrong_flags_are_explained(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main(arguments, "0") == 2
    assert message in capsys.readouterr().err


def test_elastic_flags_are_those_of_farandole_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOROVOD_ELASTIC_TIMEOUT", "77")
    arguments = [
        *("-np", "4", "--min-np", "2", "--max-np", "8", "--slots-per-host", "1", "-p", "2222"),
        *("--reset-limit", "10", "--blacklist-cooldown-range", "120", "600"),
        *("--host-discovery-script", "./hosts.sh", "--cycle-time-ms", "5", sys.executable, "x.py"),
    ]
    settings = command_line.job_of_flags(command_line.parse(arguments, "0")).elastic
    assert settings is not None
    assert settings.command == [sys.executable, "x.py"]
    assert (settings.min_ranks, settings.ranks, settings.max_ranks) == (2, 4, 8)
    assert settings.discovery_script == "./hosts.sh"
    assert (settings.slots_per_host, settings.reset_limit) == (1, 10)
    assert (settings.elastic_timeout_s, settings.cooldown_s) == (77, (120, 600))
    assert settings.variables["HOROVOD_CYCLE_TIME"] == "5.0"
    assert settings.ssh_port == 2222


def test_texts_for_mpirun_may_begin_with_a_dash() -> None:
    for flag in ("--mpi-args", "--binding-args"):
        arguments = ["-np", "1", "--mpi", f"{flag}=--oversubscribe", sys.executable, "x.py"]
        job = command_line.job_of_flags(command_line.parse(arguments, "0"))
        assert job.mpirun_arguments == ["--oversubscribe"]


@pytest.mark.system
def test_threads_on_chosen_cores_are_not_bound_elsewhere(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text("import horovod.torch as hvd\nhvd.init()\nprint('rank', hvd.rank())")
    done = horovodrun("-np", "2", "--thread-affinity", "0", sys.executable, script)
    assert done.returncode == 0, done.stderr
    done = horovodrun("-np", "2", sys.executable, script, HOROVOD_THREAD_AFFINITY="0")
    assert done.returncode == 0, done.stderr


def test_what_is_switched_off_has_no_note(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("autotune:\n  enabled: true")
    assert plan("--no-hierarchical-allgather").notes == []
    assert plan("--no-autotune", "--config-file", str(path)).notes == []
    assert len(plan("--config-file", str(path)).notes) == 1


@pytest.mark.system
def test_functions_do_not_come_and_go() -> None:
    with pytest.raises(farandole.NotSupported, match="horovod-run-elastic"):
        horovod.run(print, num_proc=4, min_num_proc=2)


CONFIG = """
controller: gloo
params:
  fusion_threshold_mb: 32
  cycle_time_ms: 10
  hierarchical_allreduce: true
autotune:
  enabled: false
timeline:
  filename: 'timeline.json'
  mark_cycles: true
stall_check:
  enabled: false
library_options:
  thread_affinity: 1
logging:
  level: info
"""


def test_a_configuration_file_gives_what_is_not_given(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(CONFIG)
    found = plan("--cycle-time-ms", "3", "--config-file", str(path))
    assert found.variables == {
        "HOROVOD_FUSION_THRESHOLD": "33554432",
        "HOROVOD_CYCLE_TIME": "3.0",
        "HOROVOD_TIMELINE": "timeline.json",
        "HOROVOD_TIMELINE_MARK_CYCLES": "1",
        "HOROVOD_STALL_CHECK_DISABLE": "1",
        "HOROVOD_THREAD_AFFINITY": "1",
        "HOROVOD_LOG_LEVEL": "INFO",
        "FARANDOLE_RANKS_OF_HOSTS": "2",
    }
    assert [note.partition(":")[0] for note in found.notes] == ["--hierarchical-allreduce"]


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("params:\n  fusion_treshold_mb: 1", "did you mean fusion_threshold_mb?"),
        ("parameters:\n  cycle_time_ms: 1", "the section 'parameters'"),
        ("params:\n  cycle_time_ms: soon", "'soon' is no number"),
        ("params:\n  cycle_time_ms: [1, 2]", "cycle_time_ms is a list, but takes one value"),
        (
            "params:\n  cycle_time_ms: .inf",
            "cycle_time_ms is inf, but takes finite numbers",
        ),
        ("params:\n  cycle_time_ms: inf", "'inf' is no number"),
        ('timeline:\n  filename: "\\ud800"', "filename is '\\ud800', but takes text without"),
        ("a: " + "[" * 9999, "it is nested too deeply"),
        ("params: 3", "it has no keys in params"),
        ("controller: tcp", "the controller 'tcp'"),
        ("stall_check:\n  enabled: 'no'", "stall_check.enabled is 'no', and takes true or false"),
        ("library_options:\n  thread_affinity: a", "'a' is no integer"),
        ("- a", "it has no sections"),
        ("a: [", "it cannot be read"),
    ],
)
def test_wrong_configuration_files_are_explained(tmp_path: Path, text: str, why: str) -> None:
    path = tmp_path / "config.yaml"
    path.write_text(text)
    with pytest.raises(farandole.InvalidArgument, match=re.escape(why)):
        plan("--config-file", str(path))


@pytest.mark.system
def test_a_run(tmp_path: Path) -> None:
    folder = tmp_path / "output"
    done = horovodrun(
        *("-np", "2", "-H", "localhost:4", "--cycle-time-ms", "2", "--autotune", "--verbose"),
        *("--output-filename", folder, "-prefix-timestamp"),
        script(tmp_path, f'{SHOW}; echo "$HOROVOD_CYCLE_TIME $*" >&2'),
        *("-np", "7", "--autotune"),
    )
    assert done.returncode == 0, done.stderr
    lines = [re.sub(r"^[-0-9]{10} [:.0-9]+ ", "", line) for line in done.stdout.splitlines()]
    assert sorted(lines) == [f"[{r}] rank {r} of 2, {r} of 2, 0 of 1" for r in (0, 1)]
    assert "] 2.0 -np 7 --autotune\n" in done.stderr
    assert "farandole run: without effect here: --autotune: there is nothing" in done.stderr
    assert "farandole run: this is HOROVOD_CYCLE_TIME=2.0 FARANDOLE_RANKS" in done.stderr
    assert (folder / "rank.1" / "stdout").read_text() == "rank 1 of 2, 1 of 2, 0 of 1\n"
    assert (folder / "rank.0" / "stderr").read_text() == "2.0 -np 7 --autotune\n"


@pytest.mark.system
def test_the_exit_status_is_that_of_the_failed_rank(tmp_path: Path) -> None:
    program = script(tmp_path, '[ "$HOROVOD_RANK" = 1 ] && exit 3; exec sleep 60')
    done = horovodrun("-np", "2", program)
    assert done.returncode == 3
    assert "farandole run: rank 1 of 2 failed: exit status 3" in done.stderr


# Takes the place of ssh: shows its options, and runs the command as another host would.
SSH = """
echo "ssh $*" | cut -c 1-60 >&2
while [ "$1" != other ]; do shift; done
export FARANDOLE_HOST_ID=$1
shift
exec env -u MINE sh -c "$*"
"""


@pytest.mark.system
@needs_mpirun
def test_several_hosts(tmp_path: Path) -> None:
    agent = script(tmp_path, SSH, name="ssh")
    program = script(tmp_path, f'{SHOW}; echo "mine: $MINE"')
    done = horovodrun(
        *("-np", "3", "-H", "localhost:2,other:1", "-p", "2222", "-i", "key", "--gloo"),
        *(f"--mpi-args=--prtemca plm_ssh_agent {agent}", program),
        MINE="a b",
    )
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [
        "[0] mine: a b",
        "[0] rank 0 of 3, 0 of 2, 0 of 2",
        "[1] mine: a b",
        "[1] rank 1 of 3, 1 of 2, 0 of 1",
        "[2] mine: a b",
        "[2] rank 2 of 3, 0 of 1, 1 of 2",
    ]
    assert "ssh -x -p 2222 -i key other" in done.stderr
    assert "--gloo: ranks of several hosts are started by mpirun" in done.stderr


@pytest.mark.system
@needs_mpirun
def test_mpirun_on_this_host_with_its_options(tmp_path: Path) -> None:
    arguments = ("--mpi", "--binding-args=--bind-to core", "--mpi-args=-x EXTRA=given")
    done = horovodrun("-np", "2", *arguments, script(tmp_path, "echo $EXTRA $OMPI_COMM_WORLD_SIZE"))
    assert sorted(done.stdout.splitlines()) == ["[0] given 2", "[1] given 2"], done.stderr


@pytest.mark.system
def test_what_is_built_is_told() -> None:
    done = horovodrun("--check-build")
    backends = {each.name: each.built for each in farandole._C.backends()}
    mark = "X" if backends["mpi"] else " "
    assert f"Available Controllers:\n    [{mark}] MPI\n    [ ] Gloo\n" in done.stdout
    assert "    [ ] TensorFlow\n    [X] PyTorch\n" in done.stdout
    assert horovodrun("--version").stdout == "0.28.1\n"


def run(function: Any, *args: Any, **options: Any) -> list[Any]:
    executable = str(warm_python.executable())
    return horovod.run(function, args, executable=executable, **options)


@pytest.mark.system
def test_a_function_runs_on_ranks() -> None:
    def train(base: float) -> tuple[int, float, str]:
        import horovod.torch as hvd
        import torch

        hvd.init()
        total = hvd.allreduce(torch.tensor([base + hvd.rank()]), op=hvd.Sum)
        return hvd.rank(), total.item(), os.environ["HOROVOD_LOCAL_SIZE"]

    with pytest.warns(UserWarning, match="without effect here: --disable-cache"):
        found = run(train, 2.0, num_proc=2, disable_cache=True, hosts="localhost:2")
    assert found == [(0, 5.0, "2"), (1, 5.0, "2")]
    with pytest.warns(DeprecationWarning, match="np is an old name of num_proc"):
        assert run(os.getpid, np=2) != []


@pytest.mark.system
def test_a_function_that_fails_is_told() -> None:
    def fail() -> None:
        if os.environ["HOROVOD_RANK"] == "1":
            raise KeyError("lost")

    with pytest.raises(RankError, match=r"rank 1 of 2 raised KeyError: 'lost'"):
        run(fail, num_proc=2)
    with pytest.raises(ValueError, match="got both hosts and hostfile"):
        horovod.run(fail, hosts="a:1", hostfile="b")
    with pytest.raises(ValueError, match="got both use_gloo and use_mpi"):
        horovod.run(fail, use_gloo=True, use_mpi=True)
    with pytest.raises(ValueError, match="number of ranks is 0"):
        horovod.run(fail, num_proc=0)
