# SPDX-License-Identifier: Apache-2.0
"""The rank and world-size API and the ways to start."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import farandole
import pytest
import torch
import torch.distributed as dist
from farandole import _C, _torch_version

import ranks

LAUNCHER = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def api(rank: int, world_size: int) -> None:
    assert farandole.init_process_group() is dist.group.WORLD
    assert (farandole.rank(), farandole.world_size()) == (rank, world_size)
    assert (farandole.local_rank(), farandole.local_world_size()) == (rank, world_size)
    everyone = torch.arange(float(world_size))

    tensor = torch.full((4,), float(rank))
    assert farandole.all_reduce(tensor, op="max").is_completed()
    assert torch.equal(tensor, torch.full((4,), float(world_size - 1)))
    tensor = torch.full((2,), rank + 1)
    farandole.all_reduce(tensor, op=dist.ReduceOp.PRODUCT, async_op=True).wait()
    assert tensor[0].item() == torch.arange(1, world_size + 1).prod().item()

    own, flat = torch.tensor([float(rank)]), torch.empty(world_size)
    farandole.all_gather(flat, own)
    assert torch.equal(flat, everyone)
    part = torch.empty(1)
    farandole.reduce_scatter(part, flat, op="sum")
    assert part.item() == rank * world_size
    farandole.broadcast(own, root=world_size - 1)
    assert own.item() == world_size - 1
    own = torch.tensor([float(rank)])
    farandole.reduce(own, root=0, op="sum")
    assert own.item() == (sum(range(world_size)) if rank == 0 else rank)
    own = torch.tensor([float(rank)])
    output = torch.empty(world_size, 1) if rank == 0 else None
    farandole.gather(output, own)
    assert output is None or torch.equal(output.view(-1), everyone)
    farandole.scatter(own, output)
    assert own.item() == rank
    received = torch.empty(world_size)
    farandole.all_to_all(received, everyone + 10 * rank)
    assert torch.equal(received, everyone * 10 + rank)
    farandole.barrier()


@pytest.mark.parametrize("world_size", [1, 2, 3])
def test_the_api_on_plain_tensors(world_size: int) -> None:
    ranks.run(api, world_size)


def environment(**variables: str) -> dict[str, str]:
    kept = {name: value for name, value in os.environ.items() if name not in LAUNCHER}
    return {**kept, **variables}


def run_python(code: str, **variables: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", code],
        env=environment(**variables),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


ALONE = """
import torch, farandole
farandole.init_process_group()
tensor = torch.ones(3)
farandole.all_reduce(tensor, op="avg")
print(farandole.rank(), farandole.world_size(), farandole.local_rank(), tensor.tolist())
"""


@pytest.mark.system
def test_alone_without_a_launcher_and_says_so_in_one_line() -> None:
    result = run_python(ALONE)
    assert result.returncode == 0, result.stderr
    assert result.stdout.split("\n")[0] == "0 1 0 [1.0, 1.0, 1.0]"
    lines = result.stderr.strip().split("\n")
    assert len(lines) == 1
    assert lines[0].startswith("farandole INFO:")


@pytest.mark.system
def test_the_line_can_be_turned_off() -> None:
    assert run_python(ALONE, FARANDOLE_LOG="warning").stderr == ""


@pytest.mark.parametrize(
    ("variables", "missing"),
    [
        ({"RANK": "0"}, "WORLD_SIZE is not set"),
        ({"WORLD_SIZE": "2"}, "RANK is not set"),
        ({"RANK": "0", "WORLD_SIZE": "1"}, "MASTER_ADDR is not set"),
        ({"RANK": "two", "WORLD_SIZE": "2"}, "RANK is 'two'"),
        ({"RANK": "2", "WORLD_SIZE": "2"}, "RANK is 2 and WORLD_SIZE is 2"),
    ],
)
def test_variables_in_part_are_an_error(
    variables: dict[str, str], missing: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in LAUNCHER:
        monkeypatch.delenv(name, raising=False)
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(farandole.InvalidArgument, match=missing) as caught:
        _C.find_launch()
    assert "\nwhy: " in str(caught.value)
    assert "\nfix: " in str(caught.value)


def test_no_group_is_an_error_that_says_what_to_call() -> None:
    with pytest.raises(farandole.InvalidArgument, match="no default group"):
        farandole.all_reduce(torch.ones(1))


TORCHRUN = """
import os, torch, torch.distributed as dist, farandole
for _ in range(2):  # the launcher's store serves both
    farandole.init_process_group()
    assert farandole.rank() == int(os.environ["RANK"])
    assert farandole.local_rank() == int(os.environ["LOCAL_RANK"])
    tensor = torch.ones(1)
    dist.all_reduce(tensor)
    assert tensor.item() == farandole.world_size() == 3
    farandole.destroy()
farandole.init_process_group()
print("done", flush=True)
"""


@pytest.mark.system
def test_under_torchrun(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(TORCHRUN)
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node=3"]
    result = subprocess.run(
        [*torchrun, str(script)],
        env=environment(OMP_NUM_THREADS="1"),
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert result.returncode == 0, result.stderr
    assert result.stdout.count("done") == 3
    lines = [line for line in result.stderr.splitlines() if "farandole INFO" in line]
    assert len(lines) == 1, lines
    assert lines[0].endswith("' has 3 ranks on one host: shared memory.")


def test_another_torch_is_told_before_the_library_is_loaded() -> None:
    _torch_version.check("2.11.0+cu130", "2.11.0")
    _torch_version.check("2.11.3", "2.11.0")
    with pytest.raises(ImportError, match=r"(?s)built against torch 2\.11\.0.*why: .*fix: "):
        _torch_version.check("2.12.0", "2.11.0")


def test_events_and_backends_are_there() -> None:
    ranks.run(events, 2)
    names = {info.name: info.built for info in _C.backends()}
    assert names["shm"]
    assert names["tcp"]


def events(rank: int, world_size: int) -> None:
    del rank, world_size
    dist.all_reduce(torch.ones(8))
    newest = _C.recent_events(1)[0]
    assert (newest.operation, newest.bytes) == ("all_reduce", 32)
    assert "all_reduce" in str(newest)


def test_a_line_of_the_log_needs_no_standard_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stderr", None)  # as under pythonw, or where a program closed it
    record = logging.LogRecord("farandole", logging.WARNING, "", 0, "text", None, None)
    monkeypatch.setattr(farandole.logs.LOGGER, "handlers", [])
    monkeypatch.setattr(logging.getLogger(), "handlers", [])
    farandole.logs.UntilThereIsAnother().emit(record)


IMPORTED = """
import sys, torch
before = set(sys.modules)
import farandole
print(*sorted({name.partition(".")[0] for name in set(sys.modules) - before}))
"""


@pytest.mark.system
def test_import_brings_little_along() -> None:
    done = run_python(IMPORTED)
    assert set(done.stdout.split()) == {"farandole", "torch"}  # which has all that it takes


REACHED = """
import farandole, pkgutil
names = [*farandole.__all__, *(each.name for each in pkgutil.iter_modules(farandole.__path__))]
public = {name for name in names if not name.startswith("_")}
assert {"elastic", "horovod", "named", "run", "spark", "save_checkpoint"} <= public
assert public <= set(dir(farandole))
assert set(farandole.profiler.__all__) <= set(dir(farandole.profiler))
assert not hasattr(farandole, "no_such_name")
print(farandole.elastic.run.__name__, farandole.spark.run.__name__)
"""


@pytest.mark.system
def test_late_names_and_modules_need_no_import_of_their_own() -> None:
    assert run_python(REACHED).stdout.split() == ["run", "run"]
