# SPDX-License-Identifier: Apache-2.0
"""What Spark's part does without a cluster."""

from __future__ import annotations

import importlib
import sys
from types import ModuleType
from typing import Any

import farandole
import farandole.spark
import horovod.spark
import pytest
from farandole.spark.places import host_of, variables_of
from sparkdl import HorovodRunner

import warm_python


def test_local_ranks_and_hosts_are_counted_from_addresses() -> None:
    hosts = ["b", "a", "b", "a", "c"]
    found = [variables_of(rank, hosts, [[]] * 5, port=1234) for rank in range(5)]
    assert [each["RANK"] for each in found] == ["0", "1", "2", "3", "4"]
    assert [each["LOCAL_RANK"] for each in found] == ["0", "0", "1", "1", "0"]
    assert [each["LOCAL_WORLD_SIZE"] for each in found] == ["2", "2", "2", "2", "1"]
    assert [each["GROUP_RANK"] for each in found] == ["0", "1", "0", "1", "2"]
    assert {(each["MASTER_ADDR"], each["MASTER_PORT"]) for each in found} == {("b", "1234")}
    assert {(each["WORLD_SIZE"], each["GROUP_WORLD_SIZE"]) for each in found} == {("5", "3")}
    assert [each["HOROVOD_CROSS_RANK"] for each in found] == ["0", "1", "0", "1", "2"]
    assert [each["HOROVOD_CROSS_SIZE"] for each in found] == ["3", "3", "2", "2", "3"]
    assert not any("CUDA_VISIBLE_DEVICES" in each for each in found)


def test_the_gpu_of_a_rank_has_the_number_of_its_local_rank() -> None:
    hosts, gpus = ["a", "b", "a", "b"], [["3"], ["0", "1"], ["1"], ["2", "5"]]
    visible = [
        variables_of(rank, hosts, gpus, port=1)["CUDA_VISIBLE_DEVICES"].split(",")
        for rank in range(4)
    ]
    assert visible == [["3", "1"], ["0", "2", "1", "5"], ["3", "1"], ["0", "2", "1", "5"]]


@pytest.mark.parametrize(
    ("address", "host"),
    [("h1:4040", "h1"), ("h1", "h1"), ("[fe80::1]:4040", "fe80::1"), ("fe80::1", "fe80::1")],
)
def test_hosts_are_found_in_addresses(address: str, host: str) -> None:
    assert host_of(address) == host


@pytest.mark.system  # which installs pyspark
def test_a_session_is_needed() -> None:
    with pytest.raises(farandole.InvalidArgument, match=r"getOrCreate.*\[spark-no-session\]"):
        farandole.spark.run(print, num_proc=2)
    with pytest.raises(farandole.InvalidArgument, match=r"\[spark-no-session\]"):
        HorovodRunner(np=2).run(print)


@pytest.mark.parametrize(
    ("name", "values"),
    [
        ("function", [5, None]),
        ("args", [5, "ab", {1: 2}, (each for each in "ab")]),
        ("kwargs", [5, ("a",), {1: 2}]),
        ("num_proc", [0, -1, "2", 1.5, True]),
        ("start_timeout_s", [0, -1.0, "5", None, float("nan"), True]),
        ("variables", ["A=5", {"A": 5}, {5: "A"}, {"": "x"}, {"A=B": "x"}, {"A": "x\0"}]),
        ("python", [5, ""]),
    ],
)
def test_wrong_arguments_are_named(name: str, values: list[Any]) -> None:
    for value in values:
        arguments: dict[str, Any] = {"function": print, name: value}
        with pytest.raises(farandole.InvalidArgument, match=rf"got {name}=.*\n.*\n.*\[spark-"):
            farandole.spark.run(**arguments)


@pytest.mark.parametrize(
    ("name", "value"),
    [("env", "A=5"), ("env", {"A": 5}), ("executable", ""), ("start_timeout", -1)],
)
def test_wrong_arguments_have_the_names_of_horovod(name: str, value: Any) -> None:
    arguments: dict[str, Any] = {"num_proc": 2, name: value}
    with pytest.raises(farandole.InvalidArgument, match=rf"got {name}=.*\n.*\n.*\[spark-arg"):
        horovod.spark.run(print, **arguments)


@pytest.mark.parametrize("np", [-2, 2])
def test_the_runner_needs_a_function(np: int) -> None:
    with pytest.raises(farandole.InvalidArgument, match=r"got function=5\."):
        HorovodRunner(np=np).run(5)  # type: ignore[arg-type]


@pytest.mark.system
def test_sessions_of_spark_connect_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("pyspark.sql.utils.is_remote", lambda: True)
    with pytest.raises(farandole.NotSupported, match=r"TorchDistributor.*\[spark-connect\]"):
        farandole.spark.run(print, num_proc=2)


def test_pyspark_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pyspark.sql.utils", None)
    with pytest.raises(farandole.NotSupported, match=r"pip install pyspark.*\[spark-missing\]"):
        farandole.spark.run(print, num_proc=2)


@pytest.mark.parametrize(
    "values", [{"np": "2"}, {"np": 2.0}, {"np": True}, {"np": 2, "driver_log_verbosity": "some"}]
)
def test_wrong_values_of_the_runner_are_named(values: dict[str, object]) -> None:
    with pytest.raises(farandole.InvalidArgument, match=r"\[horovod-runner\]"):
        HorovodRunner(**values)  # type: ignore[arg-type]


def test_all_slots_are_deprecated() -> None:
    with pytest.warns(DeprecationWarning, match="np=0"):
        HorovodRunner(np=0)


@pytest.mark.system
def test_the_runner_runs_on_the_host_of_the_driver(
    capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def main(number: int) -> int:
        from sparkdl.horovod import log_to_driver

        rank = farandole.init_process_group().rank()
        log_to_driver(f"rank {rank} says {number}")
        farandole.destroy()
        return number + rank

    monkeypatch.setattr(sys, "executable", str(warm_python.executable()))
    assert HorovodRunner(np=-2).run(main, number=5) == 5
    printed = capfd.readouterr().out
    assert {"rank 0 says 5", "rank 1 says 5"} <= {*printed.splitlines()}


def test_a_program_that_is_no_rank_prints_what_it_says(capsys: pytest.CaptureFixture[str]) -> None:
    farandole.spark.log_to_driver("alone")
    assert capsys.readouterr().out == "alone\n"


def test_batches_are_said_if_asked_for(capsys: pytest.CaptureFixture[str]) -> None:
    for log in (farandole.spark.EpochLog(), farandole.spark.EpochLog(per_batch=True)):
        log.on_epoch_begin(3)
        log.on_batch_end(7, {"loss": 0.5, "accuracy": 1})
        log.on_batch_end(8)
    expected = ["epoch 3 begins"] * 2 + ["epoch 3, batch 7: loss 0.5, accuracy 1"]
    assert capsys.readouterr().out.splitlines() == [*expected, "epoch 3, batch 8"]


def test_the_log_callback_is_one_of_keras_where_that_is(monkeypatch: pytest.MonkeyPatch) -> None:
    keras, callbacks = ModuleType("keras"), ModuleType("keras.callbacks")
    callbacks.Callback = type("Callback", (), {})  # type: ignore[attr-defined]
    name = "sparkdl.horovod.tensorflow.keras"
    plain = importlib.import_module(name).LogCallback(per_batch_log=True)
    assert isinstance(plain, farandole.spark.EpochLog)
    monkeypatch.setitem(sys.modules, "keras", keras)
    monkeypatch.setitem(sys.modules, "keras.callbacks", callbacks)
    monkeypatch.delitem(sys.modules, name)
    of_keras = importlib.import_module(name).LogCallback()
    assert isinstance(of_keras, callbacks.Callback)
    monkeypatch.delitem(sys.modules, name)


def test_elastic_jobs_are_refused() -> None:
    with pytest.raises(farandole.NotSupported, match=r"resume_or_start.*\[horovod-spark-elastic\]"):
        horovod.spark.run_elastic(print, num_proc=2)


@pytest.mark.parametrize("part", ["common", "keras", "lightning", "torch", "task"])
def test_missing_parts_name_what_to_do(part: str) -> None:
    with pytest.raises(farandole.NotSupported, match=r"\[horovod-missing\]"):
        importlib.import_module(f"horovod.spark.{part}")
