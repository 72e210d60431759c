# SPDX-License-Identifier: Apache-2.0
"""`farandole run`: wrong options, the division of cores, lines, and the cause of a failure."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
from farandole.__main__ import main
from farandole.run.command_line import job_of, make_parser
from farandole.run.console import ERR, OUT, Console
from farandole.run.cores import Core, Division, describe, divide, text_of
from farandole.run.failure import (
    Failure,
    describe_cause,
    report,
    root_cause,
    shell_status,
    status_of_shell,
)
from farandole.run.lines import LONGEST_BYTES, LineCutter
from farandole.run.mpirun import failure_in


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["-n", "0", "sh"], "-n was '0'"),
        (["-n", "-2", "sh"], "-n was '-2'"),
        (["-n", "many", "sh"], "-n was 'many'"),
        (["-n", "²", "sh"], "-n was '²'"),
        (["-n", "251", "sh"], "it is an integer of from 1 to 250"),
        (["--max-restarts", "1.5", "sh"], "--max-restarts was"),
        (["no_such.py"], "there is no program 'no_such.py'"),
        (["-m", "no_such.module"], "there is no Python module 'no_such'"),
        (["-np", "p", "sh"], "-n was 'p'"),
        (["no_such_program"], "and PATH no such program"),
        (["/tmp"], "it is a folder"),
        (["--hosts", "h1:two", "sh"], "--hosts has the entry 'h1:two'"),
        (["--hosts", "", "sh"], "--hosts has the entry ''"),
        (["--hosts", "h1:2", "-n", "3", "sh"], "the hosts take 2 together, h1:2"),
        (["--hosts", "h1,h2", "-n", "3", "sh"], "3 ranks cannot be divided among 2 hosts"),
        (["--hosts", "h1", "--hostfile", "f", "sh"], "--hosts cannot be combined with --hostfile"),
        (["--hosts", "h1", "--max-restarts", "1", "sh"], "cannot be combined with --max-restarts"),
        (["--hosts", "h1", "--nnodes", "2", "--node-rank", "0", "--master-addr", "h", "sh"], "-nn"),
        (["--nnodes", "2", "sh"], "--nnodes 2 needs --node-rank and --master-addr"),
        (["--nnodes", "2", "--node-rank", "2", "--master-addr", "h", "sh"], "from 0 to 1"),
        (["--mpirun-args", "-x", "sh"], "expected one argument"),
        (["--mpirun-args=-x", "sh"], "--mpirun-args cannot be combined with torchrun"),
        (["--hosts", "h1", "--mpirun-args='", "sh"], "--mpirun-args was"),
        (["--output-dir", "/dev/null/x", "sh"], "--output-dir /dev/null/x cannot be used"),
        (["--no-such-option", "sh"], "unrecognized arguments: --no-such-option"),
        (["-n", "2"], "the following arguments are required: program"),
        ([], "usage: farandole run"),
    ],
)
def test_misuse_ends_with_2_and_a_text(
    arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        status = main(["run", *arguments])
    except SystemExit as error:  # argparse
        status = error.code
    output, errors = capsys.readouterr()
    assert (status, output) == (2, "")
    assert message in errors


def test_a_program_that_is_not_executable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("train").touch()
    Path("train.py").touch()
    assert main(["run", "train"]) == 2
    assert "fix: call chmod +x train, or put the program" in capsys.readouterr().err
    assert main(["run", "tran.py"]) == 2
    assert "(train.py?)" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("arguments", "command"),
    [
        (["-n", "2", "/bin/sh", "-n", "5", "--help"], ["/bin/sh", "-n", "5", "--help"]),
        (["/bin/sh", "--", "x"], ["/bin/sh", "--", "x"]),
        (["--", "/bin/sh", "-q", "--"], ["/bin/sh", "-q", "--"]),
        (["-m", "-n2", "json.tool", "-m", ""], [sys.executable, "-m", "json.tool", "-m", ""]),
    ],
)
def test_what_follows_the_program_belongs_to_it(arguments: list[str], command: list[str]) -> None:
    assert job_of(make_parser().parse_args(arguments)).command == command


@pytest.mark.parametrize("option", ["-n", "-np", "--np", "--nproc-per-node", "--nproc_per_node"])
def test_the_number_of_ranks_has_the_names_of_other_launchers_too(option: str) -> None:
    assert job_of(make_parser().parse_args([option, "3", "/bin/sh"])).ranks == 3


def test_help_has_examples(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        main(["run", "--help"])
    assert caught.value.code == 0
    assert "farandole run -n 4 train.py --epochs 3" in capsys.readouterr().out


ONE_THREAD = [Core(0, 0, number, number) for number in range(5)]
# Two nodes of two physical cores with two threads each, numbered as Linux does.
TWO_NODES = sorted(
    Core(p // 2, p // 2, p % 2, p + 4 * thread) for p in range(4) for thread in (0, 1)
)


@pytest.mark.parametrize(
    ("cores", "quota", "ranks", "division"),
    [
        (ONE_THREAD, None, 1, Division(((0, 1, 2, 3, 4),), 5)),
        (ONE_THREAD, None, 2, Division(((0, 1), (2, 3, 4)), 2)),
        (ONE_THREAD, None, 5, Division(((0,), (1,), (2,), (3,), (4,)), 1)),
        (ONE_THREAD, None, 6, Division((), 1)),
        (ONE_THREAD, 2, 2, Division(((0, 1), (2, 3, 4)), 1)),
        (ONE_THREAD, 1, 2, Division(((0, 1), (2, 3, 4)), 1)),
        (TWO_NODES, None, 2, Division(((0, 1, 4, 5), (2, 3, 6, 7)), 2)),
        (TWO_NODES, None, 4, Division(((0, 4), (1, 5), (2, 6), (3, 7)), 1)),
        (TWO_NODES, None, 8, Division(tuple((core,) for core in (0, 4, 1, 5, 2, 6, 3, 7)), 1)),
    ],
)
def test_cores_are_divided(
    cores: list[Core], quota: int | None, ranks: int, division: Division
) -> None:
    assert divide(cores, quota, ranks) == division


def test_a_division_is_described() -> None:
    division = divide(TWO_NODES, None, 2)
    said = describe(division, 2, bind=True, threads=None)
    assert said == "cores 0-1,4-5 | 2-3,6-7, OMP_NUM_THREADS=2"
    said = describe(division, 2, bind=False, threads="3")
    assert said == "not bound to cores, OMP_NUM_THREADS=3 (as set in the environment)"
    assert text_of((1, 3, 4, 5, 9)) == "1,3-5,9"


def test_lines_are_cut() -> None:
    cutter = LineCutter()
    assert cutter.feed(b"on") == []
    assert cutter.feed(b"e\ntwo\r\n\nthr") == [b"one", b"two", b""]
    assert cutter.end() == [b"thr"]
    assert cutter.end() == []
    assert cutter.feed(b"10 %\r20 %") == []
    assert cutter.shown == b"10 %"
    assert cutter.feed(b"\r30 %\r40 %\nnext") == [b"40 %"]
    assert cutter.shown is None
    assert cutter.feed(b"x" * LONGEST_BYTES) == [b"next" + b"x" * LONGEST_BYTES]


PEER = "[rank0]: farandole.PeerFailure: all_reduce on rank 0 of 3: rank {} (pid 7 on h) ended."
NO_FOLDER = "[rank1]: farandole.CheckpointError: save_checkpoint() failed on rank 0."
STEP = "farandole.StepError: optimizer step #4 in group 'g' on rank 1 of 3 failed on rank 0."


@pytest.mark.parametrize(
    ("statuses", "texts", "cause"),
    [
        ({1: 1, 0: 1}, {}, 1),
        ({0: 1, 1: 1}, {0: PEER.format(1), 1: "ValueError: bad batch"}, 1),
        ({0: -9, 2: -15}, {}, 0),
        ({2: -15, 0: 1}, {0: PEER.format(2)}, 2),  # killed from outside: nothing had failed before
        ({2: -15}, {}, 2),
        ({0: 1}, {0: PEER.format(2)}, 2),  # mpirun reports one rank
        ({0: 1}, {0: PEER.format(2), 2: PEER.format(1)}, 1),
        ({0: 1}, {0: PEER.format(2), 2: PEER.format(0)}, 2),
        ({0: 1}, {0: PEER.format(0)}, 0),
        ({1: 1, 0: 1}, {0: NO_FOLDER, 1: NO_FOLDER}, 0),
        ({1: 1, 0: 1}, {0: "ValueError: bad batch", 1: STEP}, 0),
        ({0: -6}, {0: "of 'farandole::AbortedError'\n  what():  was aborted by rank 1 (pid 9)"}, 1),
    ],
)
def test_the_cause_is_found(
    statuses: dict[int, int], texts: dict[int, str], cause: int, capfd: pytest.CaptureFixture[str]
) -> None:
    console = Console(prefix=True, folder=None, quiet=False)
    for rank, text in texts.items():
        console.feed(str(rank), ERR, text.encode() + b"\n")
    failure = Failure(statuses)
    assert root_cause(failure, console) == cause
    status = report(failure, 3, console)
    assert status == {1: 1, -9: 137, -15: 143, -6: 134}[statuses.get(cause, statuses.get(0, 0))]
    said = capfd.readouterr().err
    assert f"farandole run: rank {cause} of 3 " in said
    assert "look at the output on its host" not in said


def test_statuses_of_a_shell() -> None:
    for status in (0, 1, 128, -9, -15, 213):  # 213 is no signal: it is what mpirun may end with
        assert status_of_shell(shell_status(status)) == status


LEFT = "[rank0]: farandole.PeerFailure: barrier on rank 0 of 3: rank 1 (pid 8 on h) left the group."


@pytest.mark.parametrize(
    ("failure", "texts", "headline", "shown"),
    [
        pytest.param(
            Failure({0: 1, 1: -15}, {0: 7, 1: 8}, {0: "h", 1: "h"}),
            {0: LEFT, 1: "done"},
            "rank 1 of 3 ended first (pid 8, host h); rank 0 failed because of it: exit status 1.",
            ["    done", "    " + LEFT],
            id="ended by the launcher while it ended",
        ),
        pytest.param(
            Failure({0: 1, 1: -9}, finished=frozenset({2})),
            {0: LEFT},
            "rank 1 of 3 ended first; rank 0 failed because of it: exit status 1.",
            [],
            id="killed by the launcher after 30 s",
        ),
        pytest.param(
            Failure({0: 1}, finished=frozenset({1})),
            {0: LEFT},
            "rank 1 of 3 ended first with exit status 0; rank 0 failed because of it: exit",
            [],
            id="ended without an error",
        ),
        pytest.param(
            Failure({2: 1}, {2: 9, 1: 8}),
            {2: LEFT.replace("rank 1", "rank 0")},
            "rank 1 of 3 ended first (pid 8); rank 2 failed because of it: exit status 1.",
            [],
            id="named by its number in another group",
        ),
        pytest.param(
            Failure({1: 1, 0: -15}),
            {0: "opening it", 1: NO_FOLDER},
            "rank 0 of 3 failed first; rank 1 failed because of it: exit status 1.",
            ["    opening it", "    " + NO_FOLDER],
            id="ended by the launcher before it could fail",
        ),
        pytest.param(
            Failure({1: 1, 0: 1}),
            {0: NO_FOLDER, 1: NO_FOLDER},
            "rank 0 of 3 failed: exit status 1.",
            ["    " + NO_FOLDER],
            id="an error of another rank",
        ),
        pytest.param(
            Failure({0: 1, 2: -15}),
            {0: "farandole.TimeoutError: rank 2 (pid 9 on h) did not arrive."},
            "rank 0 of 3 failed: exit status 1.",
            [],
            id="a rank that was late and ended by the launcher",
        ),
        pytest.param(
            Failure({0: 1}, sees_all=False),
            {0: LEFT},
            "rank 1 of 3 ended first; rank 0 failed because of it: exit status 1. Rank 1 printed "
            "nothing here: look at the output on its host.",
            [],
            id="on another host",
        ),
    ],
)
def test_no_rank_is_blamed_that_the_launcher_ended_or_that_tells_of_another(
    failure: Failure,
    texts: dict[int, str],
    headline: str,
    shown: list[str],
    capfd: pytest.CaptureFixture[str],
) -> None:
    console = Console(prefix=False, folder=None, quiet=False)
    for rank, text in texts.items():
        console.feed(str(rank), OUT, text.encode() + b"\n")
        console.feed(str(rank), ERR, text.encode() + b"\n")
    capfd.readouterr()
    assert report(failure, 3, console) == 1
    said = capfd.readouterr().err
    assert f"farandole run: {headline}" in said
    assert "SIG" not in said
    for line in shown:
        assert f"{line}\n" in said


@pytest.mark.parametrize(
    ("ended", "expected"),
    [
        ({1: 3, 0: 1}, "rank 1: exit status 3"),
        ({0: 1, 1: 3}, "rank 1: exit status 3"),
        ({1: None, 0: 1}, "rank 1"),
        ({1: None, 0: -15}, "rank 1"),
        ({0: 1, 1: -15}, "rank 1"),
        ({2: None, 1: -15}, "which one is unknown"),
        ({1: None, 0: None}, "which one is unknown"),
    ],
)
def test_a_restart_names_the_rank_that_failed_first(
    ended: dict[int, int | None], expected: str
) -> None:
    console = Console(prefix=True, folder=None, quiet=True)
    console.feed("0", ERR, b"farandole.PeerFailure: rank 1 (pid 7 on h) left the group.\n")
    assert describe_cause(ended, console) == expected


def test_a_host_that_was_silent_is_told(capfd: pytest.CaptureFixture[str]) -> None:
    console = Console(prefix=True, folder=None, quiet=False)
    text = (
        "farandole.PeerFailure: rank 2 (pid 7 on h) has not answered for 10000 ms.\n[link-silent]\n"
    )
    console.feed("0", ERR, text.encode())
    report(Failure({0: 1}), 3, console)
    assert "rank 2 of 3 did not answer; rank 0 failed because of it" in capfd.readouterr().err


def test_progress_in_a_file_is_a_line_at_times(capfd: pytest.CaptureFixture[str]) -> None:
    console = Console(prefix=True, folder=None, quiet=False)
    for percent in range(0, 100, 10):
        console.feed("0", OUT, b"\r%d percent" % percent)
    console.end_all()
    assert capfd.readouterr().out == "[0] 0 percent\n[0] 90 percent\n"


def test_what_mpirun_says_of_a_failed_rank() -> None:
    text = "The first process to do so was: Process name: [prterun-h-1@1,12] Exit code: 3"
    assert failure_in(text) == Failure({12: 3})
    text = "prterun noticed that process rank 1 with PID 44 on node h2 exited on signal 9 (Killed)."
    assert failure_in(text) == Failure({1: -9}, {1: 44}, {1: "h2"})
    assert failure_in("A daemon failed to report back") is None
