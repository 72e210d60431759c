# SPDX-License-Identifier: Apache-2.0
"""`farandole run` on one host: output, failures, signals, cores."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from farandole.run.torchrun import RANK_PROGRAM

from run_command import (
    DEADLINE_S,
    command,
    environment,
    pids_of_ranks,
    run,
    run_line,
    script,
    start,
    wait_until_gone,
)

pytestmark = pytest.mark.system

REPOSITORY = Path(__file__).parents[2]
PROGRAMS = REPOSITORY / os.environ.get("FARANDOLE_BUILD", "build/release") / "tests"


def test_lines_have_their_rank_and_stay_in_their_stream(tmp_path: Path) -> None:
    program = script(
        tmp_path, 'echo "out $* of $WORLD_SIZE"; echo "fault $RANK" >&2; printf "no end"'
    )
    folder = tmp_path / "a folder"
    done = run("-n", "3", "--output-dir", folder, program, "a  b", "$x $$y ${local_rank}", "'\"")
    assert done.returncode == 0, done.stderr
    expected = [f"[{rank}] out a  b $x $$y ${{local_rank}} '\" of 3" for rank in range(3)]
    assert sorted(done.stdout.splitlines()) == sorted(
        [*expected, *(f"[{r}] no end" for r in "012")]
    )
    lines = done.stderr.splitlines()
    assert lines[0].startswith("farandole run: 3 ranks started by torchrun; ")
    assert sorted(lines[1:]) == [f"[{rank}] fault {rank}" for rank in range(3)]
    kept = (folder / "rank-1.log").read_text()
    assert sorted(kept.replace("no end", "no end\n").splitlines()) == sorted(
        [expected[1].removeprefix("[1] "), "fault 1", "no end"]
    )


def test_a_run_goes_on_when_its_files_cannot_be_written(tmp_path: Path) -> None:
    folder = tmp_path / "logs"
    (folder / "rank-1.log").mkdir(parents=True)
    (folder / "rank-2.log").symlink_to("/dev/full")
    program = script(tmp_path, "echo $RANK; echo again >&2; echo $RANK")
    done = run("-n", "3", "-q", "--output-dir", folder, program)
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == [f"[{r}] {r}" for r in (0, 0, 1, 1, 2, 2)]
    assert (folder / "rank-0.log").read_text().count("0\n") == 2
    told = sorted(line for line in done.stderr.splitlines() if line.startswith("farandole run:"))
    assert told == [
        f"farandole run: {folder}/rank-{rank}.log ends here, since it cannot be written: {why}; "
        "the run goes on"
        for rank, why in ((1, "Is a directory"), (2, "No space left on device"))
    ]


def test_a_full_disk_under_standard_output_is_told(tmp_path: Path) -> None:
    with Path("/dev/full").open("wb") as full:
        done = subprocess.run(
            command("-n", "2", "-q", script(tmp_path, "echo $RANK; exec sleep 60")),
            env=environment(),
            stdin=subprocess.DEVNULL,
            stdout=full,
            stderr=subprocess.PIPE,
            text=True,
            timeout=DEADLINE_S,
            check=False,
        )
    assert done.returncode == 128 + signal.SIGPIPE
    assert done.stderr == (
        "farandole run: standard output cannot be written: No space left on device\n"
    )


def test_a_rank_does_not_outlive_a_launcher_that_died_before_it_began() -> None:
    numbers = {"RANK": "0", "WORLD_SIZE": "1", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1"}
    for launcher, status in ((os.getpid(), 0), (1, -signal.SIGKILL)):
        options = ["--launcher", str(launcher), "--no-bind", "--quiet"]
        done = subprocess.run(
            [sys.executable, "-I", "-S", RANK_PROGRAM, *options, "--", "true"],
            env=environment(**numbers),
            timeout=DEADLINE_S,
            check=False,
        )
        assert done.returncode == status


def test_outputs_that_the_shell_closed_are_no_fault(tmp_path: Path) -> None:
    program = script(tmp_path, "cat && echo to nobody; echo to nobody >&2")
    started = command("-n", "2", "-q", program, python=sys.executable)
    for closed in (">&-", "<&- >&- 2>&-"):
        done = run_line(["/bin/sh", "-c", f'"$@" {closed}', "sh", *started])
        assert done.returncode == 0, closed
        assert "Traceback" not in done.stderr


def test_signals_that_its_parent_blocks_or_ignores_do_not_matter(tmp_path: Path) -> None:
    text = (
        "import os, signal, sys; signal.pthread_sigmask(0, [signal.SIGCHLD, signal.SIGTERM]);"
        "signal.signal(signal.SIGCHLD, signal.SIG_IGN); os.execv(sys.argv[1], sys.argv[1:])"
    )
    answers = ("--host-discovery-script", "echo localhost:1")
    program = script(tmp_path, "grep SigBlk /proc/$(cut -d ' ' -f 4 /proc/$PPID/stat)/status")
    started = command("-n", "1", *answers, program, python=sys.executable)
    done = run_line([sys.executable, "-c", text, *started])
    assert done.returncode == 0, done.stderr
    assert done.stdout == f"[0] SigBlk:\t{0:016}\n"  # of farandole run


def test_lines_of_ranks_that_write_at_once_do_not_mix(tmp_path: Path) -> None:
    text = "i=0; while [ $i -lt 3000 ]; do echo $RANK-$i-$RANK-$RANK$RANK; i=$((i+1)); done"
    done = run("-n", "4", "-q", script(tmp_path, text))
    assert done.stderr == ""
    for rank in range(4):
        own = [line for line in done.stdout.splitlines() if line.startswith(f"[{rank}] ")]
        assert own == [f"[{rank}] {rank}-{i}-{rank}-{rank}{rank}" for i in range(3000)]


def test_bytes_that_are_no_text_pass_through_without_prefix(tmp_path: Path) -> None:
    program = script(tmp_path, r"printf '\377\200 ü\n'", name="ein Programm")
    done = subprocess.run(
        command("-n", "1", "--no-prefix", program),
        env=environment(FARANDOLE_LOG="warning"),
        capture_output=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert (done.stdout, done.stderr) == (b"\xff\x80 \xc3\xbc\n", b"")


def test_an_exception_stands_last(tmp_path: Path) -> None:
    program = tmp_path / "train it.py"
    program.write_text(
        "import os, time\n"
        "if os.environ['RANK'] == '1':\n"
        "    raise ValueError('bad batch')\n"
        "time.sleep(60)\n"
    )
    done = run("-n", "2", program, python=sys.executable)
    assert done.returncode == 1
    *_, traceback, empty, last = done.stderr.splitlines()
    assert (traceback, empty) == ("    ValueError: bad batch", "")
    assert re.fullmatch(
        r"farandole run: rank 1 of 2 failed: exit status 1 \(pid \d+, host \S+\)\. "
        r"The other ranks were ended\.",
        last,
    )
    assert "The last lines of rank 1:\n    Traceback (most recent call last):" in done.stderr
    assert "ChildFailedError" not in done.stderr


@pytest.mark.parametrize(
    ("how", "status", "said"),
    [
        ("exit 3", 3, "failed: exit status 3"),
        ("kill -9 $$", 137, "failed: killed by SIGKILL"),
        ("kill -15 $$", 143, "failed: killed by SIGTERM"),
        ("exec /no/such/program", 127, "failed: exit status 127"),
    ],
)
def test_a_failed_rank_ends_the_others(tmp_path: Path, how: str, status: int, said: str) -> None:
    text = f'[ "$RANK" = 2 ] || exec sleep 60\necho last\n{how}'
    done = run("-n", "3", script(tmp_path, text))
    assert done.returncode == status
    assert f"farandole run: rank 2 of 3 {said}" in done.stderr
    assert "The last lines of rank 2:\n    last\n" in done.stderr
    assert ("memory" in done.stderr) == (status == 137)


@pytest.mark.parametrize(
    ("error", "how"),
    [
        ("farandole.PeerFailure: rank 1 (pid $(cat pid) on h) left the group.", "ended first"),
        ("farandole.CheckpointError: save_checkpoint() failed on rank 1.", "failed first"),
    ],
)
def test_a_rank_that_the_launcher_ended_is_not_said_to_have_failed(
    tmp_path: Path, error: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    text = f"""
        if [ "$RANK" = 1 ]; then echo done; echo $$ >new; mv new pid; exec sleep 60; fi
        until [ -e pid ]; do sleep 0.01; done
        echo "{error}" >&2; exit 1"""
    done = run("-n", "2", script(tmp_path, text))
    assert done.returncode == 1
    assert re.search(
        rf"The last lines of rank 1:\n    done\nThe last lines of rank 0:\n    {error[:20]}.*\n\n"
        rf"farandole run: rank 1 of 2 {how} \(pid \d+, host \S+\); rank 0 failed because of it: "
        r"exit status 1\. The other ranks were ended\.\n$",
        done.stderr,
    ), done.stderr


def test_what_a_failed_rank_has_started_is_ended(tmp_path: Path) -> None:
    worker = tmp_path / "worker"
    text = f'sleep 60 & echo $! >"{worker}.$RANK"; [ "$RANK" = 0 ] && exit 5; wait'
    assert run("-n", "2", script(tmp_path, text)).returncode == 5
    wait_until_gone([int(Path(f"{worker}.0").read_text())])


def test_a_rank_that_cannot_start_says_why(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_text("echo without a first line\n")
    program.chmod(0o700)
    done = run("-n", "1", program)
    assert done.returncode == 126
    assert "Exec format error. A script needs a first line such as #!/bin/sh." in done.stderr


READY = "echo ready $$; "


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_ends_all_ranks(tmp_path: Path, number: signal.Signals) -> None:
    started = start("-n", "2", script(tmp_path, READY + "exec sleep 60"))
    pids = pids_of_ranks(started, 2)
    started.send_signal(number)
    _, errors = started.communicate(timeout=DEADLINE_S)
    assert started.returncode == 128 + number
    assert errors.endswith(f"farandole run: ended by {number.name}; no rank is left\n")
    wait_until_gone(pids)


def test_the_second_signal_kills(tmp_path: Path) -> None:
    program = script(tmp_path, "trap '' TERM; " + READY + "sleep 60; sleep 60")
    started = start("-n", "2", program)
    pids = pids_of_ranks(started, 2)
    started.send_signal(signal.SIGTERM)
    assert started.stderr
    while "passed on to all ranks" not in started.stderr.readline():
        pass
    started.send_signal(signal.SIGTERM)
    assert started.wait(DEADLINE_S) == 143
    wait_until_gone(pids)


def test_ranks_die_with_the_command(tmp_path: Path) -> None:
    started = start("-n", "2", script(tmp_path, READY + "exec sleep 60"))
    pids = pids_of_ranks(started, 2)
    started.kill()
    started.wait(DEADLINE_S)
    wait_until_gone(pids)


def test_signals_for_programs_reach_them(tmp_path: Path) -> None:
    text = "trap 'echo saved $RANK; exit 0' USR1; " + READY + "while :; do sleep 0.02; done"
    code = "import signal, sys; from farandole.__main__ import main; sys.exit(main(sys.argv[1:]))"
    started = subprocess.Popen(
        [sys.executable, "-c", code, "run", "-n", "2", str(script(tmp_path, text))],
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )
    pids_of_ranks(started, 2)
    started.send_signal(signal.SIGUSR1)
    output, errors = started.communicate(timeout=DEADLINE_S)
    assert started.returncode == 0, errors
    assert sorted(output.split("\n")) == ["", "[0] saved 0", "[1] saved 1"]


def test_ctrl_c_in_a_terminal(tmp_path: Path) -> None:
    """Also: a progress bar is shown in place."""
    text = r"printf '\r10 percent\r20 percent' >&2; " + READY + "exec sleep 60"
    pid, terminal = pty.fork()
    if pid == 0:
        arguments = ["-m", "farandole", "run", "-n", "2", str(script(tmp_path, text))]
        os.execve(sys.executable, [sys.executable, *arguments], environment())
    seen, pressed, deadline_s = b"", False, time.monotonic() + DEADLINE_S
    while time.monotonic() < deadline_s:
        if not select.select([terminal], [], [], 0.1)[0]:
            continue
        try:
            seen += os.read(terminal, 1 << 16)
        except OSError:  # the other side has closed it
            break
        if not pressed and seen.count(b"ready") == 2:
            os.write(terminal, b"\x03")
            pressed = True
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 130
    assert b"Ctrl-C once more kills them" in seen
    assert b"\r\x1b[K[1] 10 percent" in seen
    wait_until_gone([int(each) for each in re.findall(rb"ready (\d+)", seen)])


def test_a_reader_that_stops_ends_the_ranks(tmp_path: Path) -> None:
    started = start("-n", "2", script(tmp_path, READY + "while :; do echo more; done"))
    pids = pids_of_ranks(started, 2)
    assert started.stdout
    started.stdout.close()
    assert started.wait(DEADLINE_S) == 128 + signal.SIGPIPE
    wait_until_gone(pids)


SHOW_CORES = 'echo "$(sed -n "s/Cpus_allowed_list:\t//p" /proc/self/status) $OMP_NUM_THREADS"'


def test_ranks_divide_the_cores(tmp_path: Path) -> None:
    allowed = sorted(os.sched_getaffinity(0))
    if len(allowed) < 2:
        pytest.skip("needs two cores")
    done = run("-n", str(len(allowed)), script(tmp_path, SHOW_CORES))
    assert sorted(int(line.split()[1]) for line in done.stdout.splitlines()) == allowed
    assert "; cores " in done.stderr


@pytest.mark.parametrize("option", ["more ranks", "--no-bind"])
def test_ranks_are_not_bound(tmp_path: Path, option: str) -> None:
    program = script(tmp_path, SHOW_CORES)
    ranks = len(os.sched_getaffinity(0)) + 1
    arguments = ["-n", str(ranks)] if option == "more ranks" else ["-n", "1", option]
    done = run(*arguments, program, OMP_NUM_THREADS="7")
    unbound = subprocess.run(
        [program], env=environment(), capture_output=True, text=True, check=True
    )
    assert {line.partition(" ")[2] for line in done.stdout.splitlines()} == {
        f"{unbound.stdout.strip()} 7"
    }
    assert "OMP_NUM_THREADS=7 (as set in the environment)" in done.stderr


def test_one_rank_for_each_core_by_default(tmp_path: Path) -> None:
    done = run(script(tmp_path, "echo $WORLD_SIZE"))
    ranks = len(done.stdout.splitlines())
    assert re.match(rf"farandole run: {ranks} ranks? \(one for each core\) started", done.stderr)


def test_ranks_meet_on_loopback_and_share_a_secret(tmp_path: Path) -> None:
    program = script(
        tmp_path,
        "echo $FARANDOLE_JOB_SECRET $MASTER_ADDR $(cat /proc/net/tcp /proc/net/tcp6 | "
        "grep $(printf ':%04X ' $MASTER_PORT) | grep ' 0A ' | sed 's/ *[0-9]*: //; s/ .*//')",
    )
    done = run("-n", "2", "--no-prefix", program)
    assert done.returncode == 0, done.stderr
    (first, second) = (line.split() for line in done.stdout.splitlines())
    assert first == second
    secret, address, listening = first
    assert len(secret) == 64
    assert address == "localhost"
    assert listening.partition(":")[0] in ("0100007F", "00000000000000000000000001000000")
    given = run("-n", "1", "--no-prefix", program, FARANDOLE_JOB_SECRET="x" * 40)
    assert given.stdout.split()[0] == "x" * 40


def test_restarts(tmp_path: Path) -> None:
    text = 'echo try $TORCHELASTIC_RESTART_COUNT; [ "$TORCHELASTIC_RESTART_COUNT" = 1 ] || exit 4'
    done = run("-n", "1", "--max-restarts", "2", script(tmp_path, text))
    assert (done.returncode, done.stdout) == (0, "[0] try 0\n[0] try 1\n")
    failed = r"a rank failed \((rank 0: exit status 4|which one is unknown)\)"  # if asked too late
    assert re.search(failed + "; torchrun starts all ranks again, restart 1 of 2", done.stderr)


@pytest.mark.parametrize("limits", ["-S", ""])  # the one that may be raised, or both
def test_more_ranks_than_open_files(tmp_path: Path, limits: str) -> None:
    limited = script(tmp_path, f'ulimit {limits} -n 64; exec "$@"', "limited")
    here = tmp_path / "ranks"
    here.mkdir()
    all_run = f"until [ $(ls {here} | wc -l) = 24 ]; do sleep 0.05; done"
    program = script(tmp_path, f"touch {here}/$RANK; {all_run}; ulimit -n")
    done = run_line([limited, *command("-q", "-n", "24", program, python=sys.executable)])
    if limits:
        assert done.returncode == 0, done.stderr
        assert sorted(done.stdout.splitlines()) == sorted(f"[{rank}] 64" for rank in range(24))
    else:
        assert done.returncode == 2
        assert "farandole run cannot read the output of all 24 ranks" in done.stderr


def test_too_few_open_files_for_the_launcher(tmp_path: Path) -> None:
    limited = script(tmp_path, 'ulimit -n 32; exec "$@"', "limited")
    done = run_line([limited, *command("-n", "2", "true", python=sys.executable)])
    assert done.returncode == 2
    assert "farandole run cannot start 2 ranks" in done.stderr
    assert done.stderr.endswith("[run-open-files]\n")


def test_standard_input_goes_to_rank_0(tmp_path: Path) -> None:
    done = subprocess.run(
        command("-q", "-n", "2", "cat"),
        env=environment(),
        input="line",
        capture_output=True,
        text=True,
        timeout=DEADLINE_S,
        check=False,
    )
    assert done.stdout == "[0] line\n"


TRAIN = """
import atexit, sys, time, farandole, torch
farandole.init_process_group()
if farandole.rank() == 0:
    atexit.register(time.sleep, 2)  # rank 1 says that it fails before it has ended
model = farandole.DistributedDataParallel(torch.nn.Linear(4, 4))
for step in range(3):
    if len(sys.argv) > 1 and (step, farandole.rank()) == (2, 1):
        raise ValueError("bad batch")
    model(torch.ones(1, 4)).sum().backward()
print("trained", farandole.world_size(), torch.get_num_threads(), flush=True)
"""


def test_training_and_its_failure(tmp_path: Path) -> None:
    program = tmp_path / "train.py"
    program.write_text(TRAIN)
    done = run("-n", "2", program, OMP_NUM_THREADS="1")
    assert sorted(done.stdout.splitlines()) == ["[0] trained 2 1", "[1] trained 2 1"], done.stderr
    done = run("-n", "2", program, "fail", python=sys.executable, OMP_NUM_THREADS="1")
    assert done.returncode == 1
    assert "[0] [rank0]: farandole.PeerFailure: " in done.stderr
    report = done.stderr.partition("The last lines of rank 1:")[2]
    assert "ValueError: bad batch\n\nfarandole run: rank 1 of 2 failed: exit status 1" in report


def test_a_cpp_program(tmp_path: Path) -> None:
    text = tmp_path / "text"
    text.write_text((REPOSITORY / "docs" / "design.md").read_text())
    done = run("-n", "2", PROGRAMS / "train_char_lm", text, "2")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^\[0\] step 2: loss \d+\.\d+, .*, the last$", done.stdout, re.MULTILINE)
