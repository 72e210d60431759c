# SPDX-License-Identifier: Apache-2.0
"""`make gpu-check` and its tests work, as far as the simulated device shows, and report truly."""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

import check
import command
import stages
import warm_python
from benchmarks.gpu.accelerator import ACCELERATORS
from rank_set import LeftOut, RankSet, World
from report import Check, Report, file_name

REPOSITORY = Path(__file__).parents[2]
CHECK = [sys.executable, "tests/gpu/check.py"]
SIM = [*CHECK, "--device", "sim", "--output"]
# Some of each file, on two ranks.
SLOW = "gather or strided or to_all or MIN or MAX or PRODUCT or transformer or frozen or timeout"
FAST = f"2-ranks and not ({SLOW} or convolutions or float16 or torch or staged)"
has_simulation = not ACCELERATORS["sim"].why_missing()
simulated = pytest.mark.skipif(not has_simulation, reason="built without the simulated NCCL")


@pytest.mark.system
@simulated
def test_the_tests_pass_on_the_simulated_device(tmp_path: Path) -> None:
    record = tmp_path / "record"
    options = ["--device", "sim", "-k", FAST, "--record", str(record), "-o", "addopts="]
    done = subprocess.run(
        [warm_python.executable(), "-m", "pytest", "tests/gpu", *options, "-p", "no:cacheprovider"],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        timeout=110,
        check=False,
    )
    assert done.returncode == 0, done.stdout[-8000:]
    events = [json.loads(line) for line in record.read_text().splitlines()]
    outcomes = {each["name"]: each for each in events if "name" in each}
    assert len(outcomes) == len(events) / 2 > 40
    left_out = {each["reason"] for each in outcomes.values() if each["status"] == "left out"}
    assert left_out == {
        "the race detector needs no delay",
        "NVML does not see the simulated device",
        "torch.profiler does not see the simulated device",
    }
    files = {name.partition("::")[0] for name in outcomes}
    assert len(files) == len([*(REPOSITORY / "tests/gpu").glob("test_*.py")])


@pytest.mark.system
@simulated
def test_a_check_writes_its_report(tmp_path: Path) -> None:
    path = tmp_path / "new folder" / "report.json"
    options = ["--only", "streams", "short run", "-k", "2-ranks and (future or no_call)"]
    done = subprocess.run(
        [warm_python.executable(), *SIM[1:], str(path), *options],
        cwd=REPOSITORY,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    report = json.loads(path.read_text())
    assert report["verdict"] == "passed"
    assert report["machine"]["gpu"] == "simulated"
    assert report["figures"] == []
    by_stage = {(each["stage"], each["status"]) for each in report["checks"]}
    assert {("streams", "passed"), ("short run", "passed"), ("benchmark", "left out")} <= by_stage
    assert "left out: sharing, 1 check: ranks of the simulated NCCL have a device" in done.stdout
    assert f"report: {path}" in done.stdout


@pytest.mark.system
@simulated
def test_an_interrupt_leaves_a_report_and_no_process(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    with subprocess.Popen(
        [*SIM, str(path)], cwd=REPOSITORY, stdout=subprocess.PIPE, text=True
    ) as running:
        assert running.stdout
        while not running.stdout.readline().startswith("collectives"):
            assert running.poll() is None
        time.sleep(1)
        family = command.descendants(running.pid)
        assert family
        running.send_signal(signal.SIGINT)
        text = running.stdout.read()
    assert running.returncode == 1, text
    report = json.loads(path.read_text())
    assert {each["reason"] for each in report["checks"] if each["stage"] == "streams"} == {
        "it was interrupted"
    }
    assert_gone(family)


def assert_gone(family: list[tuple[int, str]]) -> None:
    deadline = time.monotonic() + 10
    while left := [pid for pid, start in family if command.start_of(pid) == start]:
        assert time.monotonic() < deadline, left
        time.sleep(0.05)


def run(arguments: list[str], **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        arguments,
        cwd=REPOSITORY,
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.mark.system
def test_it_begins_where_farandole_is_not_installed() -> None:
    """It builds it."""
    modules = "import sys; sys.modules['farandole'] = None; import report, stages"
    folders = os.pathsep.join([str(REPOSITORY), str(REPOSITORY / "tests/gpu")])
    done = run([sys.executable, "-c", modules], PYTHONPATH=folders)
    assert done.returncode == 0, done.stderr


@pytest.mark.system
def test_without_a_gpu_it_says_so_and_writes_nothing(tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    done = run([*CHECK, "--output", str(path)], CUDA_VISIBLE_DEVICES="")
    assert done.returncode == 2
    assert "gpu-check: there is nothing to check." in done.stderr
    assert not path.exists()
    assert run([*CHECK, "--device", "sim"]).returncode == 2


def test_without_the_simulated_device_it_says_what_to_build(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("FARANDOLE_BUILD", "nowhere")
    missing = ACCELERATORS["sim"].why_missing()
    assert "nowhere/tests/libfarandole_simulated_nccl.so is missing" in missing


@pytest.mark.system
def test_a_report_that_cannot_be_written_is_told_first(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file" / "report.json", tmp_path):
        done = run([*SIM, str(path)])
        assert done.returncode == 2
        assert "the report cannot be written to" in done.stderr
        assert "OUT=" in done.stderr


@pytest.mark.system
def test_a_hanging_command_ends_at_its_limit_with_all_that_it_started(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "GRACE_S", 0.3)
    script = "trap '' TERM; setsid sleep 97 & echo started; sleep 98; sleep 99"
    begin = time.monotonic()
    done = command.run(["sh", "-c", script], 1, tmp_path / "log", tmp_path, os.environ)
    assert 1 <= time.monotonic() - begin < 30
    assert done.code is None
    assert done.reason.startswith("started\n")
    assert "was killed after" in done.reason
    own = [(pid, start) for pid, start in command.descendants(os.getpid()) if is_sleep(pid)]
    assert_gone(own)


def is_sleep(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().startswith(b"sleep\x009")
    except OSError:
        return False


def test_what_a_file_of_tests_recorded_is_reported(tmp_path: Path) -> None:
    record = tmp_path / "record"
    stage = stages.Tests("streams", 10, record=record)
    good = {"name": "x.py::test_a", "status": "passed", "reason": "", "seconds": 1.0}
    bad = {"name": "x.py::test_b", "status": "failed", "reason": "1 != 2", "seconds": 2.0}
    events = [{"begins": "x.py::test_a"}, good, {"begins": "x.py::test_b"}]
    lines = [json.dumps(each) + "\n" for each in events]

    record.write_text("".join(lines))
    found = stage.checks(command.Done(None, "the output", 30.0))
    states = [(each.name, each.status) for each in found]
    assert states == [("test_a", "passed"), ("test_b", "failed"), ("all that follow", "left out")]
    assert "the output\nwas killed after 30 s" in found[1].reason
    assert found[1].seconds == 29.0

    record.write_text("".join([*lines, json.dumps(bad) + "\n"]))
    found = stage.checks(command.Done(1, "", 30.0))
    assert [each.status for each in found] == ["passed", "failed"]
    assert found[1].reason == "1 != 2"

    record.unlink()  # pytest did not get so far
    (found,) = stage.checks(command.Done(4, "no module pytest", 1.0))
    assert (found.name, found.status) == ("streams", "failed")
    assert "no module pytest\nended with exit code 4" in found.reason


def _body(rank: int, world: World, what: str) -> int:
    if what == "hang":
        time.sleep(100)
    if what == "die":
        os._exit(3)
    if what == "leave out":
        raise LeftOut("there is no such thing")
    assert what != "fail", "it is wrong"
    return os.getpid()


@pytest.mark.system
@simulated
def test_ranks_that_hang_die_or_fail_are_replaced() -> None:
    ranks = RankSet(World("sim", 1))
    try:
        pids = ranks.run(_body, "")
        assert ranks.run(_body, "") == pids
        with pytest.raises(pytest.skip.Exception, match="there is no such thing"):
            ranks.run(_body, "leave out")
        assert ranks.run(_body, "") == pids
        for what, text in [
            ("hang", "rank 0 was not done at the deadline"),
            ("die", "rank 0 died with exit code 3"),
            ("fail", "AssertionError: it is wrong"),
        ]:
            with pytest.raises(AssertionError, match=text):
                ranks.run(_body, what, deadline_s=1)
            replaced = ranks.run(_body, "")
            assert replaced != pids
            pids = replaced
        assert ranks.run(_body, "die", may_die=(0,)) == [None]
    finally:
        ranks.kill()


def fake_stages(*args: object) -> Iterator[stages.Stage]:
    yield stages.Stage("sanitizer", 5, left_out="it is not installed")
    yield stages.Stage("missing", 5, ["/nowhere/at/all"])
    yield stages.Stage("build", 5, ["sh", "-c", "echo no compiler; exit 3"])
    yield stages.Stage("collectives", 5, ["true"])


@pytest.mark.system
def test_a_failed_build_is_reported_and_nothing_runs_on_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(stages, "stages", fake_stages)
    report = Report({"gpu": "a GPU"})
    arguments = argparse.Namespace(device="cuda", select="", only=None, budget=60.0)
    check.run_stages(report, arguments, tmp_path)
    assert [(each.name, each.status) for each in report.checks] == [
        ("sanitizer", "left out"),
        ("missing", "failed"),
        ("build", "failed"),
        ("collectives", "left out"),
    ]
    assert report.checks[-1].reason == "build has failed"
    text = report.text()
    assert "FAILED: build: build\n  no compiler\n  ended with exit code 3" in text
    assert text.splitlines()[-1].startswith("FAILED: 0 passed, 2 failed, 2 left out")

    arguments.budget = 1.0
    report = Report({})
    check.run_stages(report, arguments, tmp_path)
    assert {each.reason for each in report.checks} == {"it is not installed", "no time is left"}
    assert report.has_failed  # nothing has passed


def test_reports_of_all_gpus_have_names(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert file_name("NVIDIA H100 80GB HBM3") == "gpu-check-NVIDIA-H100-80GB-HBM3.json"
    assert file_name("../a/b (c)") == "gpu-check-a-b-c.json"
    assert file_name("///") == "gpu-check-unknown.json"
    report = Report({}, [Check("build", "build", "passed", "", 1.23456)])
    report.checks += [
        Check("collectives", "test_ranks_form_a_group[1-rank]", "passed"),
        Check("collectives", "test_ranks_form_a_group[2-ranks]", "left out", "1 GPU"),
    ]
    report.checks += [Check("streams", name, "failed", "no GPU") for name in ("a", "b", "c")]
    assert "FAILED: streams: a and 2 more\n  no GPU\n" in report.text()
    assert report.worlds() == {"1-rank": "works", "2-ranks": "left out: 1 GPU"}
    assert "\n2-ranks: left out: 1 GPU\n" in report.text()
    written = report.write(tmp_path / "no folder" / "gpu-check-x.json")
    try:
        assert json.loads(written.read_text())["counts"]["passed"] == 2
        assert "cannot be written" in capsys.readouterr().out
    finally:
        written.unlink()
