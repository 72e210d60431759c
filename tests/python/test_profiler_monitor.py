# SPDX-License-Identifier: Apache-2.0
"""The system monitor: what it writes, and what it survives."""

from __future__ import annotations

import errno
import json
import logging
import os
import signal
import subprocess
import sys
import time
import types
from collections.abc import Callable, Iterator
from pathlib import Path

import farandole
import psutil
import pytest
from farandole import cgroup
from farandole.profiler import Profile, SystemMonitor
from farandole.profiler.metrics_file import MetricsFile
from farandole.profiler.probes import Reading
from farandole.profiler.probes import cores as cores_probe
from farandole.profiler.probes.cores import Cores
from farandole.profiler.probes.gpus import Gpus
from farandole.profiler.probes.memory import Memory

import ranks

DEADLINE_S = 30


def wait_until(holds: Callable[[], bool]) -> None:
    end = time.monotonic() + DEADLINE_S
    while not holds():
        assert time.monotonic() < end
        time.sleep(0.02)


def files(folder: Path) -> list[Path]:
    return sorted(folder.rglob("*.json"))


def rows(folder: Path) -> list[dict[str, object]]:
    return [json.loads(line) for file in files(folder) for line in file.read_text().splitlines()]


def lines(folder: Path) -> int:
    return sum(file.read_bytes().count(b"\n") for file in files(folder))


@pytest.fixture(name="recorded", scope="module")
def _recorded(tmp_path_factory: pytest.TempPathFactory) -> Profile:
    """A second in which one core is busy."""
    folder = tmp_path_factory.mktemp("recorded")
    allowed = os.sched_getaffinity(0)
    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
    try:
        os.sched_setaffinity(busy.pid, {max(allowed)})
        with SystemMonitor(folder, interval_ms=100) as monitor:
            wait_until(lambda: monitor.samples >= 10)
    finally:
        busy.kill()
        busy.wait()
    return Profile(folder)


@pytest.mark.system
def test_each_core_that_may_be_used_is_recorded(recorded: Profile) -> None:
    cores = recorded.metrics.of("CPUUtilization")
    assert {metric.name for metric in cores} >= {f"cpu{i}" for i in os.sched_getaffinity(0)}
    for series in cores.values():
        assert ((series.values >= 0) & (series.values <= 100)).all()


@pytest.mark.system
def test_a_busy_core_is_seen(recorded: Profile) -> None:
    busy = f"cpu{max(os.sched_getaffinity(0))}"
    for metric, series in recorded.metrics.of("CPUUtilization").items():
        if metric.name == busy:
            assert series.values[1:].mean() > 50


@pytest.mark.system
def test_memory_waits_disk_and_network_are_recorded(recorded: Profile) -> None:
    metrics = recorded.metrics
    (memory,) = metrics.of("MemoryUsedPercent").values()
    assert ((memory.values > 0) & (memory.values <= 100)).all()
    assert metrics.of("I/OWaitPercentage")
    assert len(metrics.of("Algorithm")) == 2
    if psutil.disk_io_counters() is not None:
        assert metrics.of("IOPS")
    (runnable,) = metrics.of("RunnableThreadsPerCore").values()
    assert runnable.values.max() * os.cpu_count() >= 1


@pytest.mark.system
def test_rows_are_those_of_sagemaker(recorded: Profile) -> None:
    (file,) = files(recorded.path)
    begun = int(file.name.split(".")[0])
    assert file.name == f"{begun}.algo-1.json"
    assert file.parent.name == time.strftime("%Y%m%d%H", time.gmtime(begun))
    for row in rows(recorded.path):
        assert list(row) == ["Type", "Name", "Dimension", "Value", "NodeId", "Timestamp"]
        assert row["Timestamp"] >= begun


@pytest.mark.parametrize("interval_ms", [0, 99, 250, 60001])
def test_other_intervals_than_sagemakers_are_refused(tmp_path: Path, interval_ms: int) -> None:
    with pytest.raises(farandole.InvalidArgument, match="monitor-interval"):
        SystemMonitor(tmp_path, interval_ms=interval_ms)


def test_a_host_below_1_is_refused(tmp_path: Path) -> None:
    with pytest.raises(farandole.InvalidArgument, match="monitor-node"):
        SystemMonitor(tmp_path, node=0)


def test_without_psutil_the_error_says_what_to_install(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(farandole.NotSupported, match="pip install psutil"):
        SystemMonitor(tmp_path)


def test_without_a_group_the_launcher_says_which_rank_and_host_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    variables: dict[str, object] = {
        "RANK": 5,
        "WORLD_SIZE": 8,
        "LOCAL_RANK": 1,
        "LOCAL_WORLD_SIZE": 4,
    }
    variables |= {"MASTER_ADDR": "localhost", "MASTER_PORT": 1}
    for name, value in variables.items():
        monkeypatch.setenv(name, str(value))
    with SystemMonitor(tmp_path, interval_ms=100):
        pass
    assert files(tmp_path) == []
    monkeypatch.setenv("RANK", "4")
    monkeypatch.setenv("LOCAL_RANK", "0")
    with SystemMonitor(tmp_path, interval_ms=100):
        pass
    assert [file.name.split(".")[1] for file in files(tmp_path)] == ["algo-2"]


def record_once(rank: int, world_size: int, folder: str) -> int:
    with SystemMonitor(folder, interval_ms=100) as monitor:
        pass
    return monitor.samples


def test_hosts_are_counted_by_their_first_ranks(tmp_path: Path) -> None:
    setup = ranks.Setup(backend="hosts")  # every second rank is on the other one
    assert ranks.run(record_once, 4, str(tmp_path), setup=setup) == [1, 1, 0, 0]
    nodes = sorted(file.name.split(".")[1] for file in files(tmp_path))
    assert nodes == ["algo-1", "algo-2"]


SAMPLE = [Reading("cpu", "cpu0", "CPUUtilization", 4.76)]


def test_a_file_has_a_minute_and_folders_have_an_hour(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path, "algo-1")
    start_s = 1_591_160_390.5  # 04:59:50
    for i in range(0, 180, 2):
        file.write(SAMPLE, start_s + i)
    file.close()
    names = [f"{path.parent.name}/{path.name}" for path in files(tmp_path)]
    assert names == [
        "2020060304/1591160390.algo-1.json",
        "2020060305/1591160450.algo-1.json",
        "2020060305/1591160510.algo-1.json",
    ]
    assert len(rows(tmp_path)) == 90


def test_a_file_ends_at_ten_megabytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("farandole.profiler.metrics_file.ROTATE_BYTES", 1000)
    file = MetricsFile(tmp_path, "algo-1")
    for _ in range(30):
        file.write(SAMPLE, 1_591_160_390)
    file.close()
    assert [path.stat().st_size < 1200 for path in files(tmp_path)] == [True] * len(files(tmp_path))
    assert len(files(tmp_path)) > 2
    assert len(rows(tmp_path)) == 30


def test_a_clock_that_is_set_back_overwrites_nothing(tmp_path: Path) -> None:
    file = MetricsFile(tmp_path, "algo-1")
    for second in (390, 391, 390, 10_000, 390):
        file.write(SAMPLE, 1_591_160_000 + second)
    file.close()
    names = [path.name.split(".")[0] for path in files(tmp_path)]
    assert names == ["1591160390", "1591160391", "1591170000"]
    assert len(rows(tmp_path)) == 5


def test_a_full_disk_drops_whole_samples_and_is_reported_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    write = os.write
    is_full = False

    def write_half(descriptor: int, data: bytes) -> int:
        if not is_full:
            return write(descriptor, data)
        if len(data) > 20:
            return write(descriptor, data[:20])
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", write_half)
    file = MetricsFile(tmp_path, "algo-1")
    with caplog.at_level(logging.WARNING, logger="farandole"):
        for now_full in (False, True, True, False):
            is_full = now_full
            file.write(SAMPLE, 1_591_160_390)
    file.close()
    assert file.dropped == 2
    assert len(rows(tmp_path)) == 2
    assert [record.getMessage().split(": ")[-1] for record in caplog.records] == [
        "[Errno 28] No space left on device"
    ]


def test_a_library_that_raises_a_class_of_its_own_ends_one_probe(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture, tmp_path: Path
) -> None:
    def gone() -> None:
        raise psutil.AccessDenied(1)

    monkeypatch.setattr(psutil, "virtual_memory", gone)
    caplog.set_level(logging.WARNING, "farandole")
    with SystemMonitor(tmp_path, interval_ms=100) as monitor:
        wait_until(lambda: monitor.samples >= 2)
    assert "memory are not recorded from now on" in caplog.text
    assert {"cpu"} <= {row["Type"] for row in rows(tmp_path)}


@pytest.mark.system
def test_it_ends_with_its_process_and_with_a_last_sample(tmp_path: Path) -> None:
    program = "import farandole, sys; farandole.profiler.SystemMonitor(sys.argv[1]).start()"
    subprocess.run([sys.executable, "-c", program, str(tmp_path)], timeout=DEADLINE_S, check=True)
    assert len(rows(tmp_path)) > 0


def record_beside_a_fork(rank: int, world_size: int, folder: str) -> None:
    with SystemMonitor(folder, interval_ms=100) as monitor:
        wait_until(lambda: monitor.samples >= 2)
        child = os.fork()
        if child == 0:
            monitor.stop()
            os._exit(0)
        os.waitpid(child, 0)
        seen = monitor.samples
        wait_until(lambda: monitor.samples >= seen + 2)


def test_it_goes_on_after_a_fork_whose_child_stops_it(tmp_path: Path) -> None:
    ranks.run(record_beside_a_fork, 1, str(tmp_path), setup=ranks.Setup(backend=None))
    assert len({row["Timestamp"] for row in rows(tmp_path)}) >= 4
    assert Profile(tmp_path).problems() == []


def record(folder: str) -> None:
    with SystemMonitor(folder, interval_ms=100):
        time.sleep(DEADLINE_S)


@pytest.fixture(name="recording")
def _recording(tmp_path: Path) -> Iterator[int]:
    """The process id of a program that has begun to record."""
    process = ranks.FORKSERVER.Process(target=record, args=(str(tmp_path),))
    process.start()
    try:
        wait_until(lambda: lines(tmp_path) > 20)
        yield process.pid
    finally:
        process.kill()
        process.join()


def test_a_killed_process_leaves_whole_lines(recording: int, tmp_path: Path) -> None:
    os.kill(recording, signal.SIGKILL)
    profile = Profile(tmp_path)
    assert len(list(profile.metrics.rows())) > 20
    assert profile.problems() == []


def test_a_process_that_was_stopped_does_not_catch_up(recording: int, tmp_path: Path) -> None:
    os.kill(recording, signal.SIGSTOP)
    time.sleep(2)
    os.kill(recording, signal.SIGCONT)
    before = lines(tmp_path)
    wait_until(lambda: lines(tmp_path) > before + 40)
    os.kill(recording, signal.SIGSTOP)
    times = sorted({row.timestamp for row in Profile(tmp_path).metrics.rows()})
    assert len(times) < (times[-1] - times[0]) / 0.1 - 10  # 20 would fit into the pause


def make_cgroup(folder: Path, monkeypatch: pytest.MonkeyPatch, **contents: str) -> None:
    for name, text in contents.items():
        (folder / name.replace("_", ".", 1)).write_text(text)

    def found(name: str) -> list[Path]:
        return [folder / name] if (folder / name).exists() else []

    monkeypatch.setattr(cgroup, "files", found)


def test_memory_is_counted_against_the_cgroup(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    statistics = "anon 1\ninactive_file 2000000\n"
    limits = {"memory_max": "10000000", "memory_current": "5000000", "memory_stat": statistics}
    make_cgroup(tmp_path, monkeypatch, **limits)
    (reading,) = Memory().read(1)
    assert reading == ("memory", "MemoryUsedPercent", "", 30)


def test_throttling_by_a_quota_is_recorded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    make_cgroup(
        tmp_path, monkeypatch, cpu_max="200000 100000", cpu_stat="nr_periods 10\nnr_throttled 1\n"
    )
    probe = Cores()
    (tmp_path / "cpu.stat").write_text("nr_periods 30\nnr_throttled 6\n")
    shares = [each.value for each in probe.read(1) if each.dimension == "CPUThrottledPercentage"]
    assert shares == [25]


def test_counters_of_proc_stat_become_percentages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = tmp_path / "stat"
    stat.write_text("cpu  0\ncpu0 100 0 0 100 0 0 0 0 0 0\ncpu1 5 0 0 5 0 0 0 0 0 0\n")
    monkeypatch.setattr(cores_probe, "_STAT", stat)
    monkeypatch.setattr(cgroup, "cores", lambda: {0})
    monkeypatch.setattr(os, "cpu_count", lambda: 4)
    probe = Cores()
    stat.write_text("cpu  0\ncpu0 130 0 10 140 10 0 0 10 9 9\nprocs_running 6\nprocs_blocked 3\n")
    found = {(each.name, each.dimension): each.value for each in probe.read(1)}
    assert found["cpu0", "CPUUtilization"] == 50
    assert found["cpu0", "I/OWaitPercentage"] == 10
    assert found["cores", "CPUStealPercentage"] == 10
    assert found["cores", "RunnableThreadsPerCore"] == 1.5
    assert found["disks", "BlockedThreads"] == 3
    assert ("cpu1", "CPUUtilization") not in found


class FakeNvml(types.ModuleType):
    """A driver with one GPU that does not know its power."""

    class NVMLError(Exception):
        pass

    def nvmlInit(self) -> None:  # noqa: N802
        pass

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return 1

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:  # noqa: N802
        return index

    def nvmlDeviceGetUtilizationRates(self, handle: int) -> types.SimpleNamespace:  # noqa: N802
        return types.SimpleNamespace(gpu=73)

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> types.SimpleNamespace:  # noqa: N802
        return types.SimpleNamespace(used=4, total=16)

    def nvmlDeviceGetPowerUsage(self, handle: int) -> int:  # noqa: N802
        raise self.NVMLError

    def nvmlDeviceGetCurrentClocksThrottleReasons(self, handle: int) -> int:  # noqa: N802
        return 0x20


def test_gpus_are_recorded_through_nvml(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", FakeNvml("pynvml"))
    assert list(Gpus().read(1)) == [
        ("gpu", "gpu0", "GPUUtilization", 73),
        ("gpu", "gpu0", "GPUMemoryUtilization", 25),
        ("gpu", "gpu0", "GPUThrottleReasons", 0x20),
    ]


def test_without_nvml_there_are_no_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert list(Gpus().read(1)) == []


@pytest.mark.parametrize(
    ("text", "cores"), [("0-2,5,8-9", {0, 1, 2, 5, 8, 9}), ("3", {3}), ("", None), (None, None)]
)
def test_cores_of_a_cgroup(
    monkeypatch: pytest.MonkeyPatch, text: str | None, cores: set[int] | None
) -> None:
    monkeypatch.setattr(cgroup, "nearest_value", lambda name: text)
    assert cgroup.cores() == cores


def test_a_rank_that_is_bound_sees_the_cores_of_all(tmp_path: Path) -> None:
    allowed = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(allowed)})
    try:
        with SystemMonitor(tmp_path, interval_ms=100) as monitor:
            wait_until(lambda: monitor.samples >= 3)
    finally:
        os.sched_setaffinity(0, allowed)
    seen = {metric.name for metric in Profile(tmp_path).metrics.of("CPUUtilization")}
    assert seen >= {f"cpu{core}" for core in allowed}
