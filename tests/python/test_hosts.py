# SPDX-License-Identifier: Apache-2.0
"""Groups of several hosts: network namespaces, where this process may make them."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
import torch.distributed as dist
from torch import nn

import ranks
from benchmarks.harness.ranks import UnavailableError
from benchmarks.hosts.emulated import EmulatedHosts, ip
from cmake_projects import free_port

PYTHON = Path(sys.executable)


@pytest.fixture(name="two_hosts")
def _two_hosts() -> Iterator[EmulatedHosts]:
    try:
        hosts = EmulatedHosts(2, rate=None)
    except UnavailableError as error:
        pytest.skip(str(error))
    with hosts:
        yield hosts


def start(hosts: EmulatedHosts, host: int, *command: str, **env: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["ip", "netns", "exec", hosts.names[host], *command],
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_FR_BUFFER_SIZE": "0", **env},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def torchrun_on(
    hosts: EmulatedHosts, port: int, *program: str, **env: str
) -> list[subprocess.Popen[str]]:
    """Two ranks on each of two hosts."""
    place = ["--nnodes=2", "--nproc-per-node=2", "--master-addr=10.79.0.1", f"--master-port={port}"]
    command = [str(PYTHON.parent / "torchrun"), *place]
    return [
        start(hosts, host, *command, f"--node-rank={host}", *program, **env) for host in range(2)
    ]


TRAINED = """
import farandole, torch
farandole.init_process_group()
torch.manual_seed(farandole.rank())
model = farandole.DistributedDataParallel(torch.nn.Linear(8, 3))
optimizer = farandole.ZeroRedundancyOptimizer(model.parameters(), torch.optim.AdamW, lr=0.1)
for _ in range(5):
    optimizer.zero_grad()
    model(torch.randn(4, 8)).square().sum().backward()
    optimizer.step()
total = sum(float(p.detach().double().sum()) for p in model.parameters())
totals = [None] * farandole.world_size()
farandole.all_gather_object(totals, (total, farandole.local_rank(), farandole.local_world_size()))
assert len({each[0] for each in totals}) == 1, totals
assert [each[1:] for each in totals] == [(0, 2), (1, 2)] * 2, totals
if farandole.rank() == 0:
    print("trained", farandole.world_size())
farandole.destroy_process_group()
"""


RECORDED = """
import sys, time
import farandole
farandole.init_process_group()
farandole.profiler.start(sys.argv[1], system_interval_ms=None)
time.sleep(0.5)  # the clocks are compared
for _ in range(200):
    with farandole.profiler.annotate("Barrier"):
        farandole.barrier()
farandole.profiler.stop()
farandole.destroy_process_group()
"""


@pytest.mark.system
def test_traces_of_two_hosts_line_up(tmp_path: Path, two_hosts: EmulatedHosts) -> None:
    """No rank leaves a barrier before the last one has entered it, on the clock of rank 0."""
    script = tmp_path / "record.py"
    script.write_text(RECORDED)
    agents = torchrun_on(two_hosts, 29613, str(script), str(tmp_path / "profile"))
    for agent in agents:
        _, errors = agent.communicate(timeout=90)
        assert agent.returncode == 0, errors
    profile = farandole.profiler.Profile(tmp_path / "profile")
    timelines = profile.timeline.ranks()
    assert [(rank.node, rank.rank) for rank in timelines] == [
        *(("algo-1", 0), ("algo-1", 1), ("algo-2", 2), ("algo-2", 3)),
    ]
    barriers = [
        [span for span in rank.spans("annotation") if span.name == "Barrier"] for rank in timelines
    ]
    assert [len(each) for each in barriers] == [200] * 4
    error = max(rank.clock_error_us for rank in timelines)
    assert 0 < error < 2000  # each measures its own
    for spans in zip(*barriers, strict=True):
        begun = max(span.start_us for span in spans)
        assert all(span.end_us > begun - 2 * error for span in spans)


@pytest.mark.system
@pytest.mark.parametrize("claim", ["", "one"])
def test_torchrun_on_two_hosts(tmp_path: Path, two_hosts: EmulatedHosts, claim: str) -> None:
    """Also where the hosts claim to be one: ranks that do not reach each other use the network."""
    script = tmp_path / "train.py"
    script.write_text(TRAINED)
    agents = torchrun_on(two_hosts, 29611, str(script), FARANDOLE_HOST_ID=claim)
    outputs = [agent.communicate(timeout=100) for agent in agents]
    assert [agent.returncode for agent in agents] == [0, 0], outputs
    assert "trained 4" in outputs[0][0]
    assert "4 ranks on 2 hosts (2 and 2)" in outputs[0][1]
    assert "rank 0 is at 10.79.0.1:" in outputs[0][1]
    assert ("do not share memory, so they talk over the network" in outputs[0][1]) == bool(claim)


LOST = """
import json, sys, time
import farandole, torch, torch.distributed as dist
rank, folder = int(sys.argv[1]), sys.argv[2]
dist.init_process_group("farandole", init_method=f"file://{folder}/store", rank=rank, world_size=4)
tensor = torch.ones(200_000)
open(f"{folder}/ready{rank}", "w").close()
try:
    while True:
        dist.all_reduce(tensor)
except farandole.Error as error:
    told = [type(error).__name__, error.ranks, time.time(), str(error)]
    if rank < 2:  # go on without the lost host
        farandole.shrink_group([2, 3])
        left = torch.ones(3)
        dist.all_reduce(left)
        told.append(left.tolist())
    print(json.dumps(told), flush=True)
"""


def lost_hosts(
    tmp_path: Path, hosts: EmulatedHosts, loss: str
) -> tuple[float, list[tuple[int, list[Any]]]]:
    """When the second host was lost, and what was told to ranks that live."""
    script = tmp_path / "lost.py"
    script.write_text(LOST)
    processes = [
        start(
            hosts,
            rank // 2,
            str(PYTHON),
            str(script),
            str(rank),
            str(tmp_path),
            FARANDOLE_LINK_TIMEOUT_S="4",
        )
        for rank in range(4)
    ]
    deadline = time.monotonic() + 60
    while not all((tmp_path / f"ready{rank}").exists() for rank in range(4)):
        assert time.monotonic() < deadline
        time.sleep(0.05)
    time.sleep(0.5)
    begin = time.time()
    if loss == "killed":
        for process in processes[2:]:
            process.kill()
    else:
        ip("-n", hosts.switch, "link", "set", "port1", "down")
    told = []
    for rank, process in enumerate(processes):
        output, errors = process.communicate(timeout=60)
        if loss == "killed" and rank >= 2:
            continue
        assert output, errors
        told.append((rank, json.loads(output)))
    return begin, told


@pytest.mark.system
@pytest.mark.parametrize("loss", ["killed", "vanished"])
def test_a_lost_host_is_named_in_time(tmp_path: Path, two_hosts: EmulatedHosts, loss: str) -> None:
    begin, told = lost_hosts(tmp_path, two_hosts, loss)
    assert len(told) == (2 if loss == "killed" else 4)
    for rank, (name, lost, when, text, *left) in told:
        assert left == ([[2.0, 2.0, 2.0]] if rank < 2 else [])
        assert name == "PeerFailure", text
        assert set(lost) <= ({2, 3} if rank < 2 else {0, 1}), text
        assert lost
        assert when - begin < (5 if loss == "killed" else 15), text


def sums_in_order(rank: int, world_size: int) -> None:
    """Ranks of a host first, then hosts: floats that show the order."""
    del world_size
    tensor = torch.tensor([[1.0, 1e8, 3.0, -1e8][rank]])
    dist.all_reduce(tensor)
    assert tensor.item() == (1.0 + 3.0) + (1e8 - 1e8)
    assert farandole.default_group() is not None
    assert farandole.local_world_size() == 2
    received = torch.zeros(1)
    if rank == 0:
        dist.send(torch.ones(1) * 7, 1)
        dist.recv(received, 3)
    elif rank == 1:
        assert dist.recv(received) == 0  # of any source
    elif rank == 3:
        dist.send(torch.ones(1) * 7, 0)
    assert received.item() == (7 if rank < 2 else 0)
    with pytest.raises(farandole.NotSupported):
        farandole.symmetric_empty(3)


def test_sums_and_messages() -> None:
    ranks.run(sums_in_order, 4, setup=ranks.Setup(backend="hosts"))


def trains_as_over_gloo(rank: int, world_size: int) -> list[float]:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))
    model = farandole.DistributedDataParallel(net, wire_dtype=torch.bfloat16)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    generator = torch.Generator().manual_seed(rank)
    losses = []
    for _ in range(10):
        optimizer.zero_grad()
        loss = model(torch.randn(world_size + rank, 16, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def test_gradients_in_bfloat16_give_the_bits_of_gloo() -> None:
    runs = [
        ranks.run(trains_as_over_gloo, 2, setup=ranks.Setup(backend=backend))
        for backend in ("hosts", "gloo")
    ]
    assert runs[0] == runs[1]


def makes_a_group_with_a_dead_rank(rank: int, world_size: int) -> None:
    del world_size
    if rank == 1:
        os.kill(os.getpid(), signal.SIGKILL)
    time.sleep(0.5)
    begin = time.monotonic()
    with pytest.raises(farandole.PeerFailure) as caught:
        dist.new_group([0, 1])
    assert list(caught.value.ranks) == [1]
    assert time.monotonic() - begin < 10  # the timeout is 30


@pytest.mark.parametrize("backend", ["farandole", "hosts"])
def test_a_new_group_does_not_wait_for_the_dead(backend: str) -> None:
    ranks.run(makes_a_group_with_a_dead_rank, 2, setup=ranks.Setup(backend=backend), may_die=[1])


def waits_for_a_late_rank(rank: int, world_size: int) -> None:
    del world_size
    model = farandole.DistributedDataParallel(nn.Linear(8, 3))
    model(torch.ones(2, 8)).sum().backward()
    if rank == 1:
        time.sleep(6)
    with pytest.raises(farandole.CommError) as caught:
        model(torch.ones(2, 8)).sum().backward()
    if rank == 0:
        assert isinstance(caught.value, farandole.TimeoutError)
        assert list(caught.value.ranks) == [1]
    else:
        assert isinstance(caught.value, farandole.AbortedError)
        assert list(caught.value.ranks) == [0]


def test_a_late_rank_on_another_host_is_named_in_backward() -> None:
    ranks.run(waits_for_a_late_rank, 2, setup=ranks.Setup(backend="hosts", timeout_s=3))


@pytest.mark.parametrize("rank", [0, 1])
def test_without_a_launcher_a_missing_rank_is_told(
    rank: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    port = free_port()
    place = {"RANK": f"{rank}", "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1"}
    for name, value in {**place, "MASTER_PORT": f"{port}"}.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(farandole.Error) as caught:
        farandole.init_process_group(timeout=2)
    if rank == 0:
        assert list(caught.value.ranks) == [1]
        place_told = (
            "rank 0 of 2, by the variables RANK and WORLD_SIZE; the ranks meet at 127.0.0.1"
        )
        assert f"{place_told}:{port}." in caplog.messages
        assert "rank 0 waits for rank 1 to join group 'default'." in caplog.messages
    else:
        assert f"the ranks' store could not be reached at 127.0.0.1:{port}" in str(caught.value)
        waiting = f"waiting for rank 0 at 127.0.0.1:{port}, where it opens the ranks' store."
        assert caplog.messages == [waiting]


@pytest.mark.parametrize("rank", [0, 1])
def test_a_host_without_an_address_is_told(
    rank: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    place = {"RANK": f"{rank}", "WORLD_SIZE": "2", "MASTER_ADDR": "no..host", "MASTER_PORT": "5"}
    for name, value in place.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(farandole.SystemError, match=r"'no\.\.host' has no address") as caught:
        farandole.init_process_group(timeout=0.5)
    assert "fix: set MASTER_ADDR" in str(caught.value)
    (told,) = caplog.messages
    assert "store at no..host:5 cannot be reached yet: 'no..host' has no address" in told
