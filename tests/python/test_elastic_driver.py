# SPDX-License-Identifier: Apache-2.0
"""What the driver of an elastic job decides: with workers, a store and a clock that are made up."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, cast

import farandole
import pytest
from farandole import elastic_meeting, job_secret
from farandole.run.command_line import job_of, make_parser
from farandole.run.elastic.board import StoreBoard
from farandole.run.elastic.discovery import Discovery, find_first_hosts, find_hosts
from farandole.run.elastic.driver import Driver, Outcome
from farandole.run.elastic.places import Places
from farandole.run.elastic.script import Script
from farandole.run.elastic.settings import ElasticSettings
from farandole.run.elastic.workers import WorkerProcess, WorkerStarter
from torch._C._distributed_c10d import TCPStore

import run_command


class Job:
    """A driver and all around it."""

    def __init__(self, *, ranks: int, least: int, most: int, **more: Any) -> None:
        self.now = 0.0
        self.hosts: dict[str, int] = more.pop("hosts", {"here": most})
        script = more.pop("discovery_script", None)
        settings = ElasticSettings(
            command=["x"],
            ranks=ranks,
            min_ranks=least,
            max_ranks=most,
            hosts={} if script else self.hosts,
            discovery_script=script,
            **more,
        )
        self.statuses: dict[int, int | None] = {}
        self.places: dict[int, str] = {}
        self.local_ranks: dict[int, tuple[int, int]] = {}
        self.questions: dict[int, dict[str, Any]] = {}
        self.answers: dict[int, dict[str, Any]] = {}
        self.news: list[tuple[int, int]] = []
        self.lines: list[str] = []
        self.driver = Driver(
            settings, lambda: self.hosts, self, self.start, self.lines.append, lambda: self.now
        )

    def start(self, number: int, host: str, place: int, places: int) -> Any:
        self.statuses[number], self.places[number] = None, host
        self.local_ranks[number] = (place, places)
        job = self

        class Process:
            def poll(self) -> int | None:
                return job.statuses[number]

            def kill(self) -> None:
                job.statuses[number] = -9

        return Process()

    def asks(self, numbers: Iterable[int]) -> dict[int, dict[str, Any]]:
        return {number: self.questions[number] for number in numbers if number in self.questions}

    def answer(self, number: int, serial: int, answer: dict[str, Any]) -> None:
        assert self.questions[number]["serial"] == serial
        self.answers[number] = answer

    def tell(self, news: int, result: int) -> None:
        self.news.append((news, result))

    def ask(self, *numbers: int, commits: int = 0, sync: bool = True) -> None:
        for number in numbers:
            serial = self.questions.get(number, {"serial": 0})["serial"] + 1
            self.questions[number] = {"serial": serial, "commits": commits, "sync": sync}
        self.answers.clear()

    def step(self) -> Outcome | None:
        outcome = self.driver.step()
        return outcome or self.driver.step()

    def ranks(self) -> dict[int, int]:
        return {number: answer["rank"] for number, answer in sorted(self.answers.items())}

    def begin(self) -> None:
        self.step()
        self.ask(*self.statuses)
        self.step()


def test_survivors_get_new_ranks_when_all_have_asked() -> None:
    job = Job(ranks=3, least=2, most=3)
    job.begin()
    assert job.ranks() == {0: 0, 1: 1, 2: 2}
    job.statuses[0] = -9
    job.ask(1, commits=4)
    assert job.step() is None
    assert not job.answers
    job.ask(2, commits=5)
    job.step()
    assert job.ranks() == {1: 1, 2: 0}  # who has the newest commit is rank 0
    assert job.answers[1]["sync"]
    assert job.answers[1]["members"] == [2, 1]
    assert len(job.statuses) == 3  # no place is used again
    job.statuses.update({1: 0, 2: 0})
    assert job.step() == Outcome("")


def test_a_rank_that_dies_before_it_asks_is_not_waited_for() -> None:
    job = Job(ranks=2, least=1, most=2)
    job.step()
    job.ask(1)
    job.step()
    assert not job.answers
    job.statuses[0] = 1
    job.step()
    assert job.ranks() == {1: 0}


def test_too_few_ranks_end_the_job() -> None:
    job = Job(ranks=2, least=2, most=2)
    job.begin()
    job.statuses[1] = 3
    job.ask(0)
    job.step()
    assert "1 ranks are left, and the job needs 2." in job.answers[0]["end"]
    assert "[elastic-below-minimum]" in job.answers[0]["end"]
    job.statuses[0] = 1
    outcome = job.step()
    assert outcome is not None
    assert outcome.statuses == {1: 3}
    assert not outcome.succeeded


def test_too_few_ranks_wait_for_hosts_until_the_timeout() -> None:
    job = Job(ranks=2, least=2, most=4, discovery_script="x", elastic_timeout_s=100)
    job.hosts = {"here": 2}
    job.begin()
    job.statuses[1] = -9
    job.ask(0)
    job.now = 99.0
    job.step()
    assert not job.answers
    job.hosts = {"here": 2, "there": 1}
    job.step()
    assert job.places[2] == "there"
    job.ask(2)
    job.step()
    assert job.ranks() == {0: 0, 2: 1}
    job.statuses[2] = -9
    job.ask(0)
    job.step()
    job.now = 300.0
    job.step()
    assert "[elastic-below-minimum]" in job.answers[0]["end"]


def test_too_few_places_at_the_start_are_told() -> None:
    job = Job(ranks=2, least=1, most=2, discovery_script="x", elastic_timeout_s=100)
    job.hosts = {"here": 1}
    job.step()
    assert job.lines == ["the job waits for 2 places; its hosts have 1"]
    job.now = 99.0
    assert job.step() is None
    job.now = 101.0
    outcome = job.step()
    assert outcome is not None
    assert "begins with 2 ranks, and its hosts have 1 places." in outcome.why
    assert outcome.why.endswith("[elastic-too-few-places]")
    assert len(job.lines) == 1


def test_a_number_that_another_process_got_is_not_killed() -> None:
    sleep = ["sleep", "600"]
    ended = subprocess.Popen(["sh", "-c", "sleep 600 & echo $!"], stdout=-1, start_new_session=True)
    with subprocess.Popen(sleep, start_new_session=True) as other:
        assert ended.stdout
        left = int(ended.stdout.readline())
        ended.wait()
        WorkerProcess(ended).kill()
        run_command.wait_until_gone([left])
        ended.pid = other.pid
        WorkerProcess(ended).kill()
        other.terminate()
        assert other.wait() == -signal.SIGTERM


def test_as_many_places_as_a_script_may_print_cost_nothing() -> None:
    job = Job(ranks=2, least=1, most=3, hosts={"here": 999_999_999, "other": 1})
    job.begin()
    assert job.places == dict.fromkeys(range(3), "here")


def test_new_ranks_are_announced_when_they_are_ready() -> None:
    job = Job(ranks=1, least=1, most=3, hosts={"here": 1}, discovery_script="x")
    job.begin()
    job.hosts = {"here": 2}
    job.step()
    assert job.places == {0: "here", 1: "here"}
    assert not job.news
    job.ask(1)
    job.step()
    assert job.news == [(1, 2)]
    assert not job.answers
    job.ask(0, commits=3, sync=False)
    job.step()
    assert job.ranks() == {0: 0, 1: 1}
    assert job.answers[0]["sync"]  # the new one has nothing
    assert job.answers[1]["news"] == 1


def test_ranks_of_a_host_that_goes_are_released() -> None:
    hosts = {"a": 1, "b": 2}
    job = Job(ranks=3, least=1, most=3, hosts=hosts, discovery_script="x")
    job.begin()
    assert job.places == {0: "a", 1: "b", 2: "b"}
    job.hosts = {"b": 2}
    job.step()
    assert job.news == [(1, 1)]
    job.ask(0, 1, 2, sync=False)
    job.step()
    assert job.answers[0] == {"released": True}
    assert [job.answers[number]["rank"] for number in (1, 2)] == [0, 1]
    assert not job.answers[1]["sync"]
    job.now += 31
    job.step()
    assert job.statuses[0] == -9  # it has not ended
    job.statuses.update({1: 0, 2: 0})
    assert job.step() == Outcome("")


def test_ranks_of_a_host_follow_each_other() -> None:
    job = Job(ranks=4, least=1, most=4, hosts={"a": 2, "b": 2})
    job.begin()
    job.statuses[1] = 1
    job.ask(0, commits=1)
    job.ask(2, commits=2)
    job.ask(3, commits=1)
    job.step()
    assert job.ranks() == {0: 2, 2: 0, 3: 1}
    assert [job.answers[number]["local_rank"] for number in (0, 2, 3)] == [0, 0, 1]
    assert [job.answers[number]["local_size"] for number in (0, 2, 3)] == [1, 2, 2]


def test_the_reset_limit_ends_the_job_and_stops_its_growth() -> None:
    job = Job(ranks=3, least=1, most=4, hosts={"here": 3}, discovery_script="x", reset_limit=1)
    job.begin()
    job.statuses[2] = 1
    job.ask(0, 1)
    job.step()
    assert job.ranks() == {0: 0, 1: 1}
    job.hosts = {"here": 4}
    job.step()
    assert len(job.statuses) == 3
    job.statuses[1] = 1
    job.ask(0)
    job.step()
    assert "[elastic-reset-limit]" in job.answers[0]["end"]


def test_who_does_not_meet_the_others_is_killed() -> None:
    job = Job(ranks=3, least=2, most=3, elastic_timeout_s=10)
    job.begin()
    job.statuses[0] = -9
    job.ask(1)
    job.step()
    job.now = 11.0
    job.step()
    assert job.statuses[2] == -9
    job.step()
    assert "[elastic-below-minimum]" in job.answers[1]["end"]


def test_when_one_has_finished_the_others_that_ask_go() -> None:
    job = Job(ranks=2, least=1, most=2)
    job.begin()
    job.statuses[0] = 0
    job.ask(1)
    job.step()
    assert job.answers[1] == {"released": True}
    job.statuses[1] = 0
    assert job.step() == Outcome("")


def test_an_error_at_the_end_is_one_of_the_job() -> None:
    job = Job(ranks=2, least=1, most=2)
    job.begin()
    job.statuses.update({0: 0, 1: 1})
    outcome = job.step()
    assert outcome is not None
    assert outcome.statuses == {1: 1}
    job = Job(ranks=2, least=1, most=2)
    job.begin()
    job.statuses.update({0: 0, 1: -9})
    assert job.step() == Outcome("")


def test_when_all_members_are_lost_nobody_has_the_state() -> None:
    job = Job(ranks=1, least=1, most=2, hosts={"here": 1}, discovery_script="x")
    job.begin()
    job.hosts = {"here": 2}
    job.step()
    job.ask(1)
    job.statuses[0] = -11
    job.step()
    assert "[elastic-below-minimum]" in job.answers[1]["end"]


def test_places_come_back_after_a_cooldown_that_grows() -> None:
    now = [0.0]
    places = Places((10, 40), lambda: now[0])
    waits = []
    for _ in range(4):
        places.lose("a")
        assert places.of({"a": 2, "b": 1}) == {"a": 1, "b": 1}
        assert places.some_come_back({"a": 2})
        begun = now[0]
        while places.of({"a": 2})["a"] == 1:
            now[0] += 1
        waits.append(now[0] - begun)
    assert 10 <= waits[0] <= 21
    assert 20 <= waits[1] <= 31
    assert waits[2:] == [40, 40]


def test_a_lost_place_is_used_again_after_the_cooldown() -> None:
    job = Job(ranks=2, least=1, most=2, cooldown_s=(5, 5))
    job.begin()
    job.statuses[1] = -9
    job.ask(0)
    job.step()
    assert job.ranks() == {0: 0}
    job.now = 6.0
    job.step()
    assert job.statuses == {0: None, 1: -9, 2: None}
    assert job.local_ranks == {0: (0, 2), 1: (1, 2), 2: (1, 2)}


def test_the_local_rank_of_a_replacement_is_one_that_its_host_has() -> None:
    hosts = {"a": 2, "b": 2}
    job = Job(ranks=4, least=1, most=4, hosts=hosts, discovery_script="x", cooldown_s=(5, 5))
    job.begin()
    assert [place for place, _ in job.local_ranks.values()] == [0, 1, 0, 1]
    job.statuses.update({1: -9, 2: -9})
    job.step()
    job.now = 6.0
    job.step()
    assert (job.places[4], job.local_ranks[4]) == ("a", (1, 2))
    assert (job.places[5], job.local_ranks[5]) == ("b", (0, 2))
    job.hosts = {"a": 2, "b": 1}
    job.ask(0, 3, 4, 5)
    job.step()
    assert job.answers[5] == {"released": True}
    job.hosts = hosts
    job.step()  # it has not ended, and the worker of the other place stays
    assert (job.places[6], job.local_ranks[6]) == ("b", (0, 2))


def test_workers_of_other_hosts_get_the_variables_that_mpirun_passes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    passed = {"NCCL_SOCKET_IFNAME": "eth9", "OMP_PROC_BIND": "true", "FARANDOLE_LOG": "info"}
    kept = {"FARANDOLE_HOST_ID": "here", "PASSWORD": "none"}
    for name, value in {**passed, **kept}.items():
        monkeypatch.setenv(name, value)
    settings = ElasticSettings(command=["x"], ranks=1, min_ranks=1, max_ranks=1, hosts={"a": 1})
    starter = WorkerStarter(settings, cast("StoreBoard", None), "socket")
    line = " ".join(starter._by_ssh("a", ["x"], {}))
    assert all(f"{name}={value}" in line for name, value in passed.items())
    assert not any(name in line for name in kept)


def test_host_discovery_scripts(tmp_path: Path) -> None:
    script = tmp_path / "hosts"
    script.write_text("#!/bin/sh\necho h1:4; echo; echo $1\n")
    script.chmod(0o700)
    assert find_hosts(Script(f"{script} h2"), 3) == {"h1": 4, "h2": 3}
    with pytest.raises(farandole.SystemError, match="printed 'h2'"):
        find_hosts(Script(f"{script} h2"), None)
    assert find_hosts(Script("echo a:0"), None) == {"a": 0}
    for text in ("echo fault >&2; exit 3", "/does/not/exist", "echo a:b", "echo a b"):
        with pytest.raises(farandole.SystemError, match="could not be used"):
            find_hosts(Script(text), 1)


@pytest.mark.parametrize(
    "text", [r"printf 'h1:2\nh\377:1\n'", r"printf '\377' >&2; exit 3", f"echo h1:{'9' * 5000}"]
)
def test_answers_that_are_no_hosts_are_told(text: str) -> None:
    with pytest.raises(farandole.SystemError, match=r"\[elastic-discovery\]"):
        find_hosts(Script(text), 1)


@pytest.mark.parametrize("text", ["true", "echo localhost:0"])
def test_the_first_answer_names_a_host_that_takes_ranks(text: str) -> None:
    assert find_hosts(Script(text), None) in ({}, {"localhost": 0})
    with pytest.raises(farandole.SystemError, match="names no hosts that take ranks"):
        find_first_hosts(text, None)


def test_a_slow_script_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    text = f"sleep 600 & echo $! > {tmp_path}/pid; wait"
    with pytest.raises(farandole.SystemError, match=r"killed: it ran for more than 0\.5 s"):
        Script(text, longest_s=0.5).call()
    run_command.wait_until_gone([int((tmp_path / "pid").read_text())])


def test_a_script_that_leaves_a_process_is_not_waited_for(tmp_path: Path) -> None:
    text = f"sleep 600 & echo $! > {tmp_path}/pid; echo h1:2; exit 3"
    with pytest.raises(farandole.SystemError, match="exit status 3"):
        Script(text).call()
    run_command.wait_until_gone([int((tmp_path / "pid").read_text())])
    text = f"sleep 600 >/dev/null 2>&1 & echo $! > {tmp_path}/silent; echo h1:2"
    assert find_hosts(Script(text), None) == {"h1": 2}
    run_command.wait_until_gone([int((tmp_path / "silent").read_text())])
    text = "bash -c 'exec > >(sleep 0.2; cat); echo h1:2'"  # what filters the output ends later
    assert find_hosts(Script(text), None) == {"h1": 2}
    other = tmp_path / "other"  # in a session of its own
    text = f"setsid sh -c 'echo $$ > {other}; exec sleep 600' & "
    text += f"while [ ! -s {other} ]; do sleep 0.01; done; echo h1:2"
    assert find_hosts(Script(text), None) == {"h1": 2}
    (pid,) = run_command.wait_for_pids(other, 1)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("printed", ["", "h1:1"])
def test_hosts_are_not_taken_from_an_output_that_may_be_cut(printed: str) -> None:
    text = f"(printf '{printed}'; sleep 600; echo 6) & "
    with pytest.raises(farandole.SystemError, match=r"did not end with a whole line: b'(h1:1)?'"):
        find_hosts(Script(text), None)
    with pytest.raises(farandole.SystemError, match="exit status 3"):
        find_hosts(Script(f"{text} exit 3"), None)


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("head -c 900000 /dev/zero | tr '\\0' a >&2; exit 3", f"exit status 3.*'{'a' * 200}'"),
        ("kill -9 $$", r"killed by SIGKILL\)\. Its last line on standard error: nothing"),
        (r"printf 'odd\033[2J' >&2; exit 1", r"'odd\\x1b\[2J'"),
        (r"printf '\033[2J'", r"it printed '\\x1b\[2J'"),
    ],
)
def test_what_a_script_says_is_shown_in_part_and_without_control_characters(
    text: str, told: str
) -> None:
    with pytest.raises(farandole.SystemError, match=told) as caught:
        find_hosts(Script(text), None)
    assert len(str(caught.value)) < 1000


@pytest.mark.parametrize("output", [1, 2])
def test_a_script_that_prints_without_end_is_killed(output: int, tmp_path: Path) -> None:
    text = f"echo $$ > {tmp_path}/pid; while :; do echo localhost:2; done >&{output}"
    with pytest.raises(farandole.SystemError, match="it printed more than 1 MiB"):
        Script(text).call()
    run_command.wait_until_gone([int((tmp_path / "pid").read_text())])


def test_no_exception_ends_the_discovery(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = iter([ValueError("odd"), OSError(11, "no process"), UnicodeError("text"), "h1:3"])

    def call(_: Script) -> str:
        answer = next(calls, "h1:3")
        if isinstance(answer, str):
            return answer
        raise answer

    monkeypatch.setattr("farandole.run.elastic.discovery._PERIOD_S", 0.01)
    monkeypatch.setattr(Script, "call", call)
    discovery = Discovery(Script("x"), None, {"h1": 2})
    deadline_s = time.monotonic() + run_command.DEADLINE_S
    while discovery.hosts != {"h1": 3} and time.monotonic() < deadline_s:
        time.sleep(0.01)
    discovery.end()
    assert discovery.hosts == {"h1": 3}


@pytest.mark.parametrize(
    ("options", "name"),
    [
        (["-n", "2", "--min-ranks", "3"], "elastic-settings"),
        (["-n", "4", "--max-ranks", "3"], "elastic-settings"),
        (["--min-ranks", "0"], "option-not-a-number"),
        (["--min-ranks", "1", "--cooldown", "0", "5"], "option-not-a-number"),
        (["--min-ranks", "1", "--cooldown", "9", "5"], "elastic-settings"),
        (["--min-ranks", "1", "--nnodes", "2"], "elastic-options"),
        (["--min-ranks", "1", "--max-restarts", "2"], "elastic-options"),
        (["--host-discovery-script", "x", "--hosts", "a:1"], "elastic-settings"),
        (["--min-ranks", "1", "--elastic-timeout", "0"], "option-not-a-number"),
    ],
)
def test_wrong_options_are_told(options: list[str], name: str) -> None:
    with pytest.raises(farandole.InvalidArgument) as caught:
        job_of(make_parser().parse_args([*options, __file__]))
    assert f"[{name}]" in str(caught.value)


def test_options_have_defaults() -> None:
    job = job_of(make_parser().parse_args(["-n", "4", "--min-ranks", "2", __file__]))
    assert job.elastic is not None
    assert (job.elastic.ranks, job.elastic.max_ranks) == (4, 4)
    assert job.elastic.hosts == {"localhost": 4}
    job = job_of(
        make_parser().parse_args(["--hosts", "a:2,b", "--max-ranks", "8", "-n", "2", __file__])
    )
    assert job.elastic is not None
    assert (job.elastic.min_ranks, job.elastic.hosts) == (2, {"a": 2, "b": 1})


class Meeting:
    """A board and a rank that meets it, in one process."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv(job_secret.VARIABLE, job_secret.make())
        self.board = StoreBoard("127.0.0.1")
        self.rank = elastic_meeting._Launcher(f"{self.board.address}/0")
        self.stranger = TCPStore("127.0.0.1", self.board.port, is_master=False)


def test_the_store_of_a_job_on_this_host_is_on_loopback(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(monkeypatch)
    listening = f":{meeting.board.port:04X} "
    lines = [
        line.split()[1]
        for file in ("tcp", "tcp6")
        for line in Path(f"/proc/net/{file}").read_text().splitlines()
        if listening in line and " 0A " in line
    ]
    assert [line.partition(":")[0] for line in lines] == ["0100007F"]


PLACE = {
    "generation": 1,
    "rank": 0,
    "size": 1,
    "local_rank": 0,
    "local_size": 1,
    "sync": True,
    "news": 3,
    "members": [0],
}


def test_only_the_launcher_answers_ranks(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    meeting = Meeting(monkeypatch)
    key = "answer/0/1"
    forged = [
        b"",
        b"\xff",
        b"{",
        json.dumps(PLACE).encode(),
        job_secret.sealed("", key, json.dumps(PLACE)).encode(),
        job_secret.sealed(job_secret.make(), key, json.dumps(PLACE)).encode(),
        # Of the job, for another rank.
        job_secret.sealed(job_secret.of_environment(), "answer/1/1", json.dumps(PLACE)).encode(),
    ]
    reads: list[bytes] = []

    def attack(_: float) -> None:
        if len(reads) < len(forged):
            reads.append(forged[len(reads)])
            meeting.stranger.set(key, reads[-1])
        else:
            meeting.board.answer(0, 1, PLACE)

    monkeypatch.setattr(elastic_meeting.time, "sleep", attack)
    place = meeting.rank.ask(elastic_meeting.Standing())
    assert reads == forged
    assert (place.rank, place.news, place.members) == (0, 3, [0])
    assert len([each for each in caplog.records if "is ignored" in each.message]) == 1


def test_only_the_launcher_has_news(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(monkeypatch)
    assert meeting.rank.news() is None
    meeting.stranger.set("news", "[9, 2]")
    assert meeting.rank.news() is None
    meeting.board.tell(1, 2)
    assert meeting.rank.news() == (1, 2)
    assert meeting.rank.news() is None


def test_questions_that_no_rank_has_asked_are_dropped(monkeypatch: pytest.MonkeyPatch) -> None:
    meeting = Meeting(monkeypatch)
    asked = {"serial": 1, "commits": 0, "sync": True}
    for text in ("x", "[]", json.dumps(asked), json.dumps({**asked, "serial": "1"})):
        meeting.stranger.set("ask/0", text)
        meeting.stranger.add("asks", 1)
        assert meeting.board.asks([0, 1]) == {}
    wrong = {"serial": True}, {"commits": -1}, {"sync": 1}, {"more": 1}
    for each in wrong:
        meeting.rank._records.write("ask/0", {**asked, **each})
        meeting.stranger.add("asks", 1)
        assert meeting.board.asks([0, 1]) == {}
    meeting.rank._records.write("ask/0", asked)
    meeting.stranger.add("asks", 1)
    assert meeting.board.asks([0, 1]) == {0: asked}


@pytest.mark.parametrize(
    "change",
    [
        {"rank": 1}, {"rank": -1}, {"rank": "0"}, {"size": True}, {"sync": 1}, {"members": [0, 0]},
        {"members": ["0"]}, {"members": 0}, {"more": 1}, {"end": 1}, {"released": True},
    ],
)  # fmt: skip
def test_answers_of_other_forms_are_none(change: dict[str, Any]) -> None:
    assert elastic_meeting._answer(PLACE) is not None
    assert elastic_meeting._answer({**PLACE, **change}) is None
    assert elastic_meeting._answer({"end": "why"}) == elastic_meeting._Answer(end="why")
