# SPDX-License-Identifier: Apache-2.0
"""Ranks in the tasks of a real Spark cluster: two workers, each a JVM of its own."""

from __future__ import annotations

import io
import os
import re
import runpy
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import farandole
import farandole.spark
import horovod.spark
import pytest
import torch
from farandole.run.function import RankError
from sparkdl import HorovodRunner

import spark_session
import warm_python
from run_command import DEADLINE_S, script, wait_until_gone

EXAMPLES = Path(__file__).parents[2] / "examples" / "spark"
pytestmark = pytest.mark.timeout(600)  # JVMs, and a torch for each rank: slow on a busy host


@pytest.fixture(scope="module")
def session(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    yield from spark_session.cluster(tmp_path_factory.mktemp("spark"))


@pytest.fixture(autouse=True)
def _cluster(session: Any) -> None:
    """Every test here uses it."""


def run(function: Callable[..., Any], *args: Any, **options: Any) -> list[Any]:
    options = {"num_proc": 2, "python": str(warm_python.executable()), **options}
    return farandole.spark.run(function, args, **options)


@pytest.mark.system
def test_results_and_output_come_back() -> None:
    def function(base: int) -> tuple[int, dict[str, str], str]:
        rank = farandole.init_process_group().rank()
        print("printed by", rank)
        print("an error of", rank, file=sys.stderr)
        farandole.spark.log_to_driver(f"first of {rank}")
        farandole.barrier()
        farandole.spark.log_to_driver(f"second of {rank}")
        names = ("WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "GROUP_RANK", "GIVEN")
        farandole.destroy()
        return base + rank, {name: os.environ[name] for name in names}, os.environ["FARANDOLE_LOG"]

    os.environ["FARANDOLE_LOG"] = "warning"
    out, err = io.StringIO(), io.StringIO()
    found = run(function, 10, variables={"GIVEN": "yes"}, stdout=out, stderr=err)
    common = {"WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2", "GROUP_RANK": "0", "GIVEN": "yes"}
    assert found == [(10 + r, {**common, "LOCAL_RANK": str(r)}, "warning") for r in range(2)]
    said = [line for line in out.getvalue().splitlines() if " of " in line]
    assert {*said[:2]} == {"first of 0", "first of 1"}
    assert {*said[2:]} == {"second of 0", "second of 1"}
    for rank in range(2):
        assert f"[{rank}] printed by {rank}\n" in out.getvalue()
        assert f"[{rank}] an error of {rank}\n" in err.getvalue()
    assert "RANK" not in os.environ


@pytest.mark.system
def test_a_training_is_that_of_one_process() -> None:
    def train(ranks: list[int], wrap: Callable[[Any], Any]) -> list[float]:
        """Data and sums are exact in float32."""
        net = torch.nn.Linear(4, 1, bias=False)
        net.weight.data = torch.arange(4.0).view(1, 4)
        model = wrap(net)
        optimizer = torch.optim.SGD(net.parameters(), lr=1 / 16)
        for step in range(3):
            optimizer.zero_grad()
            for rank in ranks:
                x = torch.arange(8.0).view(2, 4) % (2 + step + rank)
                (model(x).square().sum() / (8 * len(ranks))).backward()
            optimizer.step()
        return net.weight.flatten().tolist()

    def on_rank() -> list[float]:
        rank = farandole.init_process_group().rank()
        found = train([rank], farandole.DistributedDataParallel)
        farandole.destroy()
        return found

    expected = train([0, 1], lambda net: net)
    assert run(on_rank) == [expected, expected]


@pytest.mark.system
def test_what_a_rank_raises_ends_the_others_at_once() -> None:
    def function() -> None:
        farandole.spark.log_to_driver(f"pid {os.getpid()}")
        if os.environ["RANK"] == "1":
            raise ValueError("bad batch")
        time.sleep(10 * DEADLINE_S)  # in no collective, which would notice

    out, err = io.StringIO(), io.StringIO()
    with pytest.raises(RankError, match="rank 1 of 2 raised ValueError: bad batch") as caught:
        run(function, stdout=out, stderr=err)
    assert caught.value.rank == 1
    assert isinstance(caught.value.__cause__, ValueError)
    assert "in function\n" in str(caught.value)
    assert "ValueError: bad batch" in err.getvalue()
    wait_until_gone([int(pid) for pid in re.findall(r"pid (\d+)", out.getvalue())])


@pytest.mark.system
def test_the_rank_that_failed_first_is_named() -> None:
    def function() -> None:
        rank = farandole.init_process_group().rank()
        if rank == 1:
            os.abort()
        farandole.barrier()  # PeerFailure

    with pytest.raises(RankError, match=r"rank 1 of 2 failed: killed by SIGABRT"):
        run(function, stdout=io.StringIO(), stderr=io.StringIO())


@pytest.mark.system
def test_ranks_end_with_their_workers() -> None:
    def function() -> None:
        farandole.spark.log_to_driver(f"pid {os.getpid()}")
        farandole.init_process_group()
        if farandole.rank() == 1:
            os.kill(os.getppid(), signal.SIGKILL)  # Spark's worker
        time.sleep(10 * DEADLINE_S)

    out = io.StringIO()
    with pytest.raises(RankError, match="rank 1 of 2 failed: "):
        run(function, python=None, stdout=out, stderr=io.StringIO())
    wait_until_gone([int(pid) for pid in re.findall(r"pid (\d+)", out.getvalue())])


@pytest.mark.system
def test_a_python_that_cannot_start_a_rank_is_told(tmp_path: Path) -> None:
    text = f'[ "$RANK" = 1 ] && sleep 3 && exit 7; exec {warm_python.executable()} "$@"'
    python = str(script(tmp_path, text))
    with pytest.raises(RankError, match=r"rank 1 .* before it got its function: exit status 7\."):
        run(time.sleep, 10 * DEADLINE_S, python=python, stderr=io.StringIO())


@pytest.mark.system
def test_a_python_that_is_not_there_is_named() -> None:
    with pytest.raises(farandole.SystemError, match=r"'/does/not/exist'.*\[spark-job\]"):
        run(print, python="/does/not/exist", stderr=io.StringIO())


@pytest.mark.system
def test_a_job_that_is_cancelled_is_told(session: Any) -> None:
    def function() -> None:
        farandole.spark.log_to_driver(f"pid {os.getpid()}")
        time.sleep(10 * DEADLINE_S)

    class Watched(io.StringIO):
        def write(self, text: str) -> int:
            count = super().write(text)
            if self.getvalue().count("pid ") == 2:
                threading.Thread(target=session.sparkContext.cancelAllJobs).start()
            return count

    out = Watched()
    with pytest.raises(farandole.SystemError, match=r"was cancelled\.\n.*\n.*\[spark-cancelled\]"):
        run(function, stdout=out, stderr=io.StringIO())
    wait_until_gone([int(pid) for pid in re.findall(r"pid (\d+)", out.getvalue())])


@pytest.mark.system
def test_what_cannot_run_is_an_error_before_anything_starts() -> None:
    with pytest.raises(farandole.InvalidArgument, match=r"num_proc=0\."):
        run(print, num_proc=0)
    with pytest.raises(farandole.InvalidArgument, match="cannot be pickled"):
        run(print, threading.Lock())
    with pytest.raises(farandole.InvalidArgument, match=r"slots for 2 .*\n.*num_proc=2"):
        run(print, num_proc=3, start_timeout_s=0.5)
    os.environ["HOROVOD_SPARK_START_TIMEOUT"] = "soon"
    with pytest.raises(farandole.InvalidArgument, match="HOROVOD_SPARK_START_TIMEOUT is 'soon'"):
        horovod.spark.run(print, num_proc=2)


@pytest.mark.system
def test_ranks_that_wait_for_slots_are_told_in_time(session: Any) -> None:
    context = session.sparkContext

    def occupy() -> None:
        context.setJobGroup("blocker", "occupies a slot", interruptOnCancel=True)
        with pytest.raises(Exception, match="cancelled"):
            context.parallelize([0], 1).foreach(lambda _: time.sleep(1000))

    from pyspark import InheritableThread

    blocker = InheritableThread(target=occupy)
    blocker.start()
    deadline_s = time.monotonic() + DEADLINE_S
    while not context.statusTracker().getActiveStageIds() and time.monotonic() < deadline_s:
        time.sleep(0.05)
    try:
        with pytest.raises(farandole.TimeoutError, match="0 of 2 ranks have started within 2 s"):
            run(print, start_timeout_s=2)
    finally:
        context.cancelJobGroup("blocker")
        blocker.join(DEADLINE_S)
    assert run(os.getenv, "WORLD_SIZE") == ["2", "2"]  # the cluster is as before


@pytest.mark.system
def test_horovods_function_for_spark() -> None:
    def function(number: int, *, factor: int) -> tuple[float, str, str, str]:
        import horovod.torch as hvd

        hvd.init()
        total = hvd.allreduce(torch.tensor(float(number * factor + hvd.rank())), op=hvd.Sum)
        print("rank", hvd.rank())
        names = ("GIVEN", "FARANDOLE_NETWORK_INTERFACE", "FARANDOLE_LOG")
        return (total.item(), *(os.environ[name] for name in names))

    out = io.StringIO()
    found = horovod.spark.run(
        function,
        args=(10,),
        kwargs={"factor": 2},
        env={"GIVEN": "yes"},
        stdout=out,
        stderr=io.StringIO(),
        verbose=0,
        nics={"lo"},
        executable=str(warm_python.executable()),
    )
    assert found == [(41.0, "yes", "lo", "warning")] * 2
    assert {*out.getvalue().splitlines()} == {"[0] rank 0", "[1] rank 1"}


@pytest.mark.system
def test_runner_brings_the_value_of_rank_0_alone(capsys: pytest.CaptureFixture[str]) -> None:
    def main(start: int) -> Any:
        import horovod.torch as hvd
        from sparkdl.horovod import log_to_driver
        from sparkdl.horovod.tensorflow.keras import LogCallback

        hvd.init()
        print("printed")
        if hvd.rank() == 0:
            log_to_driver("said")
            callback = LogCallback()
            callback.on_epoch_begin(0)
            callback.on_epoch_end(0, {"loss": 0.25})
        return start + hvd.size() if hvd.rank() == 0 else threading.Lock()

    assert HorovodRunner(np=2).run(main, start=40) == 42
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["said", "epoch 0 begins"]
    assert re.fullmatch(r"epoch 0 ends after \d+\.\d s: loss 0\.25", lines[2])
    assert len(lines) == 3


@pytest.mark.system
def test_examples_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    sys.argv = ["train.py", str(tmp_path)]
    runpy.run_path(str(EXAMPLES / "train.py"), run_name="__main__")
    printed = capsys.readouterr().out
    losses = [float(loss) for loss in re.findall(r"^epoch \d: loss (\S+)$", printed, re.MULTILINE)]
    assert len(losses) == 4  # an epoch on the driver, then three on the cluster
    assert losses[0] == losses[1] > losses[3]
    assert f"the last loss is {losses[3]:.4f}" in printed


@pytest.mark.system
def test_the_native_example_is_the_same_under_torch_distributor(
    capsys: pytest.CaptureFixture[str],
) -> None:
    runpy.run_path(str(EXAMPLES / "native.py"), run_name="__main__")
    printed = capsys.readouterr().out
    assert len(re.findall(r"^rank [01], epoch \d: ", printed, re.MULTILINE)) == 10
    assert "the same: True" in printed
