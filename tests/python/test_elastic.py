# SPDX-License-Identifier: Apache-2.0
"""Trainings that lose ranks and get new ones: what survives, and that nothing hangs."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest

import elastic_training
import run_command
import warm_python

pytestmark = pytest.mark.system

TRAINING = Path(elastic_training.__file__)
DEADLINE_S = 100


def run(*arguments: str | Path, **variables: str) -> subprocess.CompletedProcess[str]:
    """`farandole run` with these arguments, to its end."""
    return subprocess.run(
        run_command.command(*arguments),
        env=run_command.environment(**variables),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )


def results(folder: Path) -> list[dict[str, Any]]:
    """Of the ranks that have finished, in rank order; each is the same training, retraced."""
    found = [json.loads(path.read_text()) for path in folder.glob("result-*")]
    for result in found:
        steps = [step for _, step in result["history"]]
        assert result["weights"] == elastic_training.retraced(result["first"], steps)
        assert result["history"] == found[0]["history"]
    return sorted(found, key=lambda each: each["rank"])


def check_epochs(history: list[tuple[int, list[list[int]]]], epochs: int) -> None:
    """Each sample is there in each epoch, and once if the ranks could share equally."""
    for epoch in range(epochs):
        steps = [step for each, step in history if each == epoch]
        taken = [index for step in steps for batch in step for index in batch]
        assert set(taken) == set(range(elastic_training.SAMPLES))
        assert len(taken) <= elastic_training.SAMPLES + 2 * elastic_training.BATCH


@pytest.mark.parametrize(
    ("victim", "place"),
    [
        (1, "start"), (0, "init"), (0, "sync"), (2, "step"), (0, "backward"), (1, "backward"),
        (0, "commit"),
    ],
)  # fmt: skip
def test_survivors_of_a_killed_rank_go_on(victim: int, place: str, tmp_path: Path) -> None:
    when = ("0", "0") if place in ("start", "init", "sync") else ("1", "1")
    kill = ("--kill", str(victim), *when, place)
    done = run("-n", "3", "--min-ranks", "2", TRAINING, tmp_path, *kill)
    assert done.returncode == 0, done.stderr[-3000:]
    assert f"rank process {victim} on localhost was lost (killed by SIGKILL); 2 are left" in (
        done.stderr
    )
    found = results(tmp_path)
    assert [each["rank"] for each in found] == [0, 1]
    check_epochs(found[0]["history"], 3)
    sizes = [len(step) for _, step in found[0]["history"]]
    if place in ("step", "backward", "commit"):
        assert sizes == [3] * 5 + [2] * (len(sizes) - 5)  # 4 steps, and 1 of the next epoch
        assert found[0]["resets"] == [2]


def test_fewer_ranks_than_the_minimum_end_the_job(tmp_path: Path) -> None:
    done = run("-n", "2", "--min-ranks", "2", TRAINING, tmp_path, "--kill", "1", "1", "1", "step")
    assert done.returncode == 137, done.stderr[-3000:]
    assert not results(tmp_path)
    assert "1 ranks are left, and the job needs 2." in done.stderr
    assert "[0] farandole.CommError: 1 ranks are left" in done.stderr.replace("[rank0]: ", "")
    assert "(1: killed by SIGKILL)" in done.stderr
    assert "rank 1 of 2 failed: killed by SIGKILL" in done.stderr


def discovery(folder: Path, first: str) -> str:
    """A script that prints the file of hosts, which the training changes."""
    (folder / "hosts").write_text(first + "\n")
    return str(run_command.script(folder, f"cat {folder}/hosts", name="discover"))


def test_ranks_come_and_go_in_order(tmp_path: Path) -> None:
    script = discovery(tmp_path, "localhost:2")
    hosts = json.dumps(["localhost:2", "localhost:3", "localhost:2"])
    done = run(
        *("-n", "2", "--min-ranks", "1", "--max-ranks", "3", "--host-discovery-script", script),
        *(TRAINING, tmp_path, "--hosts", hosts, "--pause", "0.05"),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = results(tmp_path)
    assert found[0]["sizes"] == [2, 3, 2]
    assert [each["rank"] for each in found] == [0, 1]
    assert found[0]["resets"] == [3, 2]
    epochs = found[0]["history"][-1][0] + 1
    check_epochs(found[0]["history"], epochs)
    assert "back to commit" not in done.stderr  # nobody has lost a step


def test_a_lost_rank_is_replaced_after_the_cooldown(tmp_path: Path) -> None:
    done = run(
        *("-n", "2", "--min-ranks", "1", "--cooldown", "1", "1", TRAINING, tmp_path),
        *("--kill", "0", "1", "1", "step", "--hosts", '["", "", ""]', "--pause", "0.05"),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = results(tmp_path)
    assert found[0]["sizes"] == [2, 1, 2]
    assert [each["rank"] for each in found] == [0, 1]
    check_epochs(found[0]["history"], found[0]["history"][-1][0] + 1)


def test_one_rank_alone_gets_another(tmp_path: Path) -> None:
    script = discovery(tmp_path, "localhost:1")
    done = run(
        *("-n", "1", "--max-ranks", "2", "--host-discovery-script", script, TRAINING, tmp_path),
        *("--hosts", '["localhost:1", "localhost:2"]', "--pause", "0.05"),
    )
    assert done.returncode == 0, done.stderr[-3000:]
    found = results(tmp_path)
    assert found[0]["sizes"] == [1, 2]
    assert [each["rank"] for each in found] == [0, 1]


SSH = """
while [ "${1#-}" != "$1" ]; do [ "$1" = -o ] && shift; shift; done
echo "$1" >> "$0.hosts"
shift
echo "$*" >> "$0.lines"
exec env -u FARANDOLE_JOB_SECRET sh -c "$*"
"""


def test_ranks_on_another_host_are_started_by_ssh(tmp_path: Path) -> None:
    """The second host is this one by another name, which a stand-in for ssh leads to."""
    ssh = run_command.script(tmp_path, SSH, name="ssh")
    path = f"{tmp_path}:{run_command.environment()['PATH']}"
    done = run(
        *("--hosts", "localhost:1,other:2", "-n", "3", "--min-ranks", "2", TRAINING, tmp_path),
        *("--kill", "1", "1", "1", "backward"),
        PATH=path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    assert Path(f"{ssh}.hosts").read_text() == "other\nother\n"
    # The secret, without which the ranks do not meet, came another way: others see command lines.
    assert "SECRET=" not in Path(f"{ssh}.lines").read_text()
    assert "rank process 1 on other was lost" in done.stderr
    assert [each["rank"] for each in results(tmp_path)] == [0, 1]


def test_a_signal_ends_all_ranks(tmp_path: Path) -> None:
    script = run_command.script(tmp_path, 'echo " ready $$"; exec sleep 60')
    started = run_command.start("-n", "2", "--min-ranks", "1", script)
    pids = run_command.pids_of_ranks(started, 2)
    started.send_signal(signal.SIGTERM)
    _, errors = started.communicate(timeout=DEADLINE_S)
    assert started.returncode == 143
    assert errors.endswith("ended by SIGTERM; no rank is left\n")
    run_command.wait_until_gone(pids)


ANSWERS = """
echo $$ >> {folder}/pids
case $(wc -l < {folder}/pids) in
1) echo localhost:1 ;;
2) printf '\\377' ;;
3) echo localhost:2 ;;
*) sleep 600 & echo $! >> {folder}/pids; wait ;;
esac
"""


def test_a_script_that_hangs_ends_with_the_job(tmp_path: Path) -> None:
    program = run_command.script(tmp_path, 'echo " ready $$"; exec sleep 60')
    answers = run_command.script(tmp_path, ANSWERS.format(folder=tmp_path), name="discover")
    started = run_command.start(
        *("-n", "1", "--max-ranks", "2", "--host-discovery-script", answers, program)
    )
    pids = run_command.pids_of_ranks(started, 2)
    pids += run_command.wait_for_pids(tmp_path / "pids", 5)
    started.send_signal(signal.SIGTERM)
    _, errors = started.communicate(timeout=DEADLINE_S)
    assert started.returncode == 143
    assert errors.count("is not UTF-8") == 1
    assert "Traceback" not in errors
    run_command.wait_until_gone(pids)


@pytest.mark.parametrize("numbers", [[signal.SIGINT] * 2, [signal.SIGKILL]])
def test_a_script_that_hangs_ends_with_a_job_that_is_killed(
    numbers: list[signal.Signals], tmp_path: Path
) -> None:
    program = run_command.script(tmp_path, 'echo " ready $$"; exec sleep 60')
    answers = run_command.script(tmp_path, ANSWERS.format(folder=tmp_path), name="discover")
    started = run_command.start(
        *("-n", "1", "--max-ranks", "2", "--host-discovery-script", answers, program)
    )
    pids = run_command.pids_of_ranks(started, 2)
    pids += run_command.wait_for_pids(tmp_path / "pids", 5)
    for number in numbers:
        started.send_signal(number)
        time.sleep(0.001)  # too short for the driver to handle the first
    started.communicate(timeout=DEADLINE_S)
    run_command.wait_until_gone(pids)


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_end_the_first_call_of_the_script(number: signal.Signals, tmp_path: Path) -> None:
    text = f"sleep 600 & echo $! >> {tmp_path}/pids; wait"
    started = run_command.start("-n", "1", "--host-discovery-script", text, "true")
    pids = run_command.wait_for_pids(tmp_path / "pids", 1)
    started.send_signal(number)
    _, errors = started.communicate(timeout=DEADLINE_S)
    assert started.returncode in (-number, 128 + number)
    assert "Traceback" not in errors
    run_command.wait_until_gone(pids)


def test_signals_end_a_script_that_has_just_started(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(
        f"""
import subprocess, time
from farandole.run.elastic.discovery import find_first_hosts

start = subprocess.Popen


def start_slowly(*arguments, **options):
    process = start(*arguments, **options)
    time.sleep(1)
    return process


subprocess.Popen = start_slowly
find_first_hosts("sleep 600 & echo $! >> {tmp_path}/pids; wait", None)
"""
    )
    with subprocess.Popen([warm_python.executable(), program], stderr=subprocess.PIPE) as started:
        pids = run_command.wait_for_pids(tmp_path / "pids", 1)
        started.send_signal(signal.SIGINT)
        assert started.wait(DEADLINE_S) == -signal.SIGINT
    run_command.wait_until_gone(pids)


def test_a_kill_ends_all_ranks(tmp_path: Path) -> None:
    script = run_command.script(tmp_path, 'echo " ready $$"; exec sleep 60')
    started = run_command.start("-n", "2", "--min-ranks", "1", script)
    pids = run_command.pids_of_ranks(started, 2)
    started.kill()
    started.communicate(timeout=DEADLINE_S)
    run_command.wait_until_gone(pids)


def test_programs_that_know_nothing_of_it_run(tmp_path: Path) -> None:
    script = run_command.script(tmp_path, "echo $RANK of $WORLD_SIZE, $LOCAL_RANK")
    done = run("-n", "2", "--min-ranks", "1", script)
    assert done.returncode == 0
    assert sorted(done.stdout.splitlines()) == ["[0] 0 of 2, 0", "[1] 1 of 2, 1"]
    script = run_command.script(tmp_path, "exit 3")
    done = run("-n", "2", "--min-ranks", "1", script)
    assert done.returncode == 3
    assert "failed: exit status 3" in done.stderr


def torchrun(folder: Path, *options: str, environment: dict[str, str]) -> str:
    """Two ranks of torchrun, which starts them again once; what they print."""
    command = [warm_python.executable(), "-m", "torch.distributed.run", "--standalone"]
    command += ["--nproc-per-node=2", "--max-restarts=1", "--monitor-interval=0.1"]
    done = subprocess.run(
        [*command, str(TRAINING), str(folder), *options],
        env=environment,
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    return done.stderr


def kept_files() -> set[Path]:
    """Of the jobs that this process starts."""
    return set(Path("/dev/shm").glob(f"farandole-commits-*-{warm_python.server_pid()}-*"))


@pytest.mark.parametrize(("victim", "place"), [(0, "backward"), (1, "commit")])
def test_commits_outlive_ranks_that_torchrun_starts_again(
    victim: int, place: str, tmp_path: Path
) -> None:
    before = kept_files()
    kill = ("--kill", str(victim), "1", "2", place)
    printed = torchrun(tmp_path, *kill, environment=run_command.environment())
    assert re.search(r"goes on from commit [78] of before the restart", printed)
    (first, second) = results(tmp_path)
    assert first["sizes"] == second["sizes"] == [2, 2]
    assert first["commits"] == len(first["history"]) == 18
    check_epochs(first["history"], 3)
    assert kept_files() <= before


FINISHED = """
import sys, farandole
farandole.init_process_group()
state = farandole.elastic.TorchState(batch=0)

@farandole.elastic.run
def train(state):
    print("began at", state.batch)
    state.batch += 1
    state.commit()

train(state)
{end}
"""


def test_commits_stay_for_a_restart_when_what_follows_the_training_fails(tmp_path: Path) -> None:
    program = tmp_path / "finished.py"
    environment = run_command.environment(TORCHELASTIC_MAX_RESTARTS="3")
    before = kept_files()
    ends = ("sys.exit(1)", "raise SystemExit('no')", "sys.exit(0)")
    for count, end in enumerate(ends):
        program.write_text(FINISHED.format(end=end))
        done = subprocess.run(
            [warm_python.executable(), program],
            env=environment,
            capture_output=True,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
        assert f"began at {count}" in done.stdout, done.stderr[-3000:]
        assert bool(done.returncode) == (count < len(ends) - 1)
    assert kept_files() <= before


def test_what_a_killed_job_has_kept_is_removed_by_the_next(tmp_path: Path) -> None:
    folder = Path(f"/dev/shm/farandole-commits-{os.getuid()}-999999999-1")
    folder.mkdir()
    (folder / "0").write_bytes(b"x")
    torchrun(tmp_path, environment=run_command.environment())
    assert not folder.exists()


def test_ranks_that_are_killed_at_random_moments(tmp_path: Path) -> None:
    """Each has a place that comes back; at the end all committed steps are right."""
    folder = tmp_path / "job"
    folder.mkdir()
    command = run_command.command(
        *("-n", "3", "--min-ranks", "1", "--cooldown", "1", "2", TRAINING, folder),
        *("--pause", "0.05", "--epochs", "12"),
    )
    draw = random.Random(5)
    with subprocess.Popen(
        command,
        env=run_command.environment(),
        stdout=subprocess.DEVNULL,
        stderr=(tmp_path / "printed").open("w"),
        start_new_session=True,
    ) as job:
        deadline_s = time.monotonic() + DEADLINE_S
        kills = 0
        while job.poll() is None and time.monotonic() < deadline_s:
            time.sleep(draw.uniform(0.5, 3.0))
            pids = ranks_of(folder)
            if len(pids) > 1 and kills < 6:
                os.kill(draw.choice(pids), signal.SIGKILL)
                kills += 1
        if job.poll() is None:
            os.killpg(job.pid, signal.SIGKILL)
    printed = (tmp_path / "printed").read_text()
    assert job.returncode == 0, printed[-4000:]
    assert results(folder), printed[-4000:]
    assert printed.count("was lost") >= 1


def ranks_of(folder: Path) -> list[int]:
    """The processes of a training that writes there."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if "\0RANK=" in path.read_text(errors="replace") and str(folder) in (
                path.with_name("cmdline").read_text(errors="replace")
            ):
                found.append(int(path.parent.name))
        except OSError:
            continue
    return found


EXAMPLES = Path(__file__).parents[2] / "examples"


def test_the_examples_are_one_training() -> None:
    losses = []
    for script in ("elastic/train.py", "horovod/elastic.py"):
        done = run("-n", "2", "--min-ranks", "1", EXAMPLES / script)
        assert done.returncode == 0, done.stderr[-3000:]
        losses.append([float(each) for each in re.findall(r"loss ([0-9.]+)", done.stdout)])
    assert len(losses[0]) == 3
    assert losses[0][2] < losses[0][0]
    assert losses[0] == pytest.approx(losses[1], abs=2e-4)


STOPPED = """
import os, signal, sys
import farandole, torch
from farandole import elastic

farandole.init_process_group()
begun = farandole.rank()
state = elastic.TorchState(step=0)

@elastic.run
def train(state):
    while state.step < 6:
        if (state.step, begun) == (3, 1):
            os.kill(os.getpid(), signal.SIGSTOP)
        farandole.all_reduce(torch.ones(1))
        state.step += 1
        state.commit()
    print("done", farandole.rank(), farandole.world_size())

train(state)
"""


def test_a_rank_that_has_stopped_is_killed(tmp_path: Path) -> None:
    program = tmp_path / "program.py"
    program.write_text(STOPPED)
    options = ("-n", "3", "--min-ranks", "2", "--elastic-timeout", "3")
    done = run(*options, program, FARANDOLE_TIMEOUT_S="4")
    assert done.returncode == 0, done.stderr[-3000:]
    assert (
        "rank process 1 on localhost has not met the others for 3 s, and is killed" in done.stderr
    )
    assert sorted(done.stdout.splitlines()) == ["[0] done 0 2", "[2] done 1 2"]
