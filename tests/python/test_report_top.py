# SPDX-License-Identifier: Apache-2.0
"""`farandole top`: what it shows of a running job, and how it ends."""

from __future__ import annotations

import contextlib
import os
import pty
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from farandole.top import command_line
from farandole.top.recent import now_of
from farandole.top.screen import COLUMNS, screen_of

import warm_python
from profile_fixtures import START_S, TimelineWriter, core, gpu, write_metrics, write_steps


def test_the_last_steps_and_values_are_shown(tmp_path: Path) -> None:
    write_steps(
        tmp_path, 40, lambda rank, step: {"exposed": 2100 - 2000 * rank, "data": 0, "latest": 1}
    )
    old, new = [0.0] * 100, [50.0] * 61
    write_metrics(tmp_path, {core(0): old + new, core(1): old + new, gpu(0): old + new})
    now = now_of(str(tmp_path))
    first, second = now.ranks
    assert (first.waits_for, second.waits_for) == (1, None)
    assert first.steps_per_s == pytest.approx(1e6 / 11_900)
    assert first.percent["communication"] == pytest.approx(100 * 2100 / 11_900)
    assert sum(first.percent.values()) == pytest.approx(100)
    (host,) = now.hosts
    assert (host.core_count, host.cores, host.gpus, host.memory) == (2, 50.0, 50.0, None)


def test_a_rank_that_stands_still_is_shown_with_its_last_step(tmp_path: Path) -> None:
    late = TimelineWriter(tmp_path, 0)
    late.now_us = 60e6
    late.step(7)
    late.save()
    dead = TimelineWriter(tmp_path, 1)
    dead.step(3)
    dead.save()
    first, second = now_of(str(tmp_path)).ranks
    assert (first.step, second.step) == (7, 3)
    assert second.steps_per_s == 0.0


def test_files_from_before_are_left_out(tmp_path: Path) -> None:
    path = write_metrics(tmp_path, {core(0): [10.0]})
    write_metrics(tmp_path, {core(1): [30.0]}, start_s=START_S + 600)
    os.utime(path, (time.time() - 600,) * 2)
    (host,) = now_of(str(tmp_path)).hosts
    assert (host.core_count, host.cores) == (1, 30.0)


def test_the_table_has_80_columns(tmp_path: Path) -> None:
    write_steps(tmp_path, 10, lambda rank, step: {}, ranks=3, node=lambda rank: "algo-1000")
    write_metrics(tmp_path, {core(0): [100.0], gpu(0): [100.0]}, node="algo-1000")
    now = now_of(str(tmp_path))
    assert now.written_s is not None
    lines = screen_of(now, "profile", now.written_s + 3).splitlines()
    assert max(map(len, lines)) <= COLUMNS
    assert lines[0] == "written 3 s ago; the last 30 s of profile"
    assert lines[2].split() == [
        *("rank", "host", "steps/s", "step", "data", "forw", "back", "comm", "opt", "ckpt"),
        *("gc", "rest", "waits"),
    ]
    assert lines[3].split()[-1] == "-"


def test_once_is_for_scripts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert command_line.main([str(tmp_path), "--once"]) == 0
    printed = capsys.readouterr().out
    assert "\x1b" not in printed
    assert "no steps were recorded yet" in printed
    assert command_line.main([str(tmp_path / "nowhere"), "--once"]) == 2
    assert "[profile-folder]" in capsys.readouterr().err


@pytest.mark.parametrize("options", [[], [".", "--interval", "0"], [".", "--interval", "nan"]])
def test_wrong_options_are_status_2(options: list[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        command_line.main(options)
    assert ended.value.code == 2


@pytest.mark.parametrize("how", ["q", "Ctrl-C"])
def test_it_refreshes_until_it_is_ended(how: str, tmp_path: Path) -> None:
    write_steps(tmp_path, 3, lambda rank, step: {})
    child, terminal = pty.fork()
    if child == 0:
        try:
            sys.stdin, sys.stdout = os.fdopen(0), os.fdopen(1, "w")  # pytest has its own
            os._exit(command_line.main([str(tmp_path), "--interval", "0.1"]))
        finally:
            os._exit(70)
    try:
        shown, deadline = "", time.monotonic() + 30
        while shown.count("steps/s") < 2 and time.monotonic() < deadline:
            if select.select([terminal], [], [], 1)[0]:
                shown += os.read(terminal, 4096).decode()
        assert shown.count("steps/s") >= 2
        os.write(terminal, b"x")  # another key changes nothing
        os.write(terminal, b"q" if how == "q" else b"\x03")
        status = ended(child)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(child, signal.SIGKILL)
        os.close(terminal)
    assert os.waitstatus_to_exitcode(status) == 0


def ended(child: int) -> int:
    """Its status; it has ten seconds."""
    for _ in range(100):
        pid, status = os.waitpid(child, os.WNOHANG)
        if pid:
            return status
        time.sleep(0.1)
    raise AssertionError("it goes on")


@pytest.mark.system
def test_a_reader_that_has_seen_enough_ends_it(tmp_path: Path) -> None:
    command = [warm_python.executable(), "-m", "farandole", "top", str(tmp_path)]
    process = subprocess.Popen(
        [*command, "--interval", "0.1"],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    assert process.stdout is not None
    assert process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    assert process.wait(60) == 0
    assert process.stderr.read() == b""
    process.stderr.close()
