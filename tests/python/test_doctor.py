# SPDX-License-Identifier: Apache-2.0
"""The command `farandole`: doctor, --cmake-dir, --version."""

import json
import os
import subprocess
import sys
from pathlib import Path

import farandole
import pytest
from farandole import doctor
from farandole.__main__ import main


def command(*arguments: str, **environment: str) -> "subprocess.CompletedProcess[str]":

    return subprocess.run(
        [sys.executable, "-m", "farandole", *arguments],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
        env={**os.environ, **environment},
    )


@pytest.mark.system
def test_doctor_finds_this_machine_ready() -> None:
    done = command("doctor")
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.endswith("\nready\n")
    assert farandole.__version__ in done.stdout
    assert "all_reduce of 1 MiB is right" in done.stdout
    for name in ("torch", "Python", "compiler", "shm", "mpi", "nccl", "memfd", "/dev/shm", "cores"):
        assert name in done.stdout


@pytest.mark.system
def test_doctor_reports_a_failing_self_test() -> None:
    secret = "not to be shown" * 3
    done = command("doctor", "--json", FARANDOLE_SPIN_US="soon", FARANDOLE_JOB_SECRET=secret)
    assert secret not in done.stdout + done.stderr
    report = json.loads(done.stdout)
    assert done.returncode == 1
    assert report["ok"] is False
    (failed,) = [finding for finding in report["findings"] if finding["ok"] is False]
    assert failed["section"] == "self-test"
    assert "FARANDOLE_SPIN_US='soon'" in failed["value"]
    assert ("FARANDOLE_SPIN_US", "soon") in [
        (finding["name"], finding["value"]) for finding in report["findings"]
    ]


def test_doctor_shows_a_page_source_as_missing_only_if_none_is_left(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    def refuse(*_: object) -> int:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("os.memfd_create", refuse)
    without_memfd = doctor.usable()
    assert all(finding.ok is not False for finding in without_memfd)
    monkeypatch.setattr("os.statvfs", refuse)
    neither = {finding.name: finding.ok for finding in doctor.usable()}
    assert neither["memfd"] is False
    assert neither["/dev/shm"] is False


def test_text_marks_what_is_wrong_and_indents_long_values() -> None:
    found = [
        doctor.Finding("a", "one", "fine", ok=True),
        doctor.Finding("b", "three", "bad\nworse", ok=False),
    ]
    assert doctor.text_of(found) == "a\n  one    fine\n\nb\n! three  bad\n         worse"


def test_sizes_are_readable() -> None:
    assert doctor.bytes_text(512) == "512 B"
    assert doctor.bytes_text(64 * 1024**2) == "64 MiB"
    assert doctor.bytes_text(3 * 1024**3 // 2) == "1.5 GiB"


def test_cmake_dir_holds_the_package(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["--cmake-dir"]) == 0
    folder = Path(capsys.readouterr().out.strip())
    assert (folder / "farandoleConfig.cmake").is_file()


@pytest.mark.system
def test_version_is_the_packages() -> None:
    done = command("--version")
    assert done.stdout == f"{farandole.__version__}\n"


@pytest.mark.system
def test_no_command_prints_help() -> None:
    done = command()
    assert done.returncode == 2
    assert "doctor" in done.stdout
