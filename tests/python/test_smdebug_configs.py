# SPDX-License-Identifier: Apache-2.0
"""smdebug's configurations as JSON, names that save nothing, and files of the originals."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
from farandole_compat import finder
from torch import nn

finder.install()
import smdebug.pytorch as smd  # noqa: E402
from smdebug import exceptions  # noqa: E402
from smdebug.core import json_config  # noqa: E402
from smdebug.trials import create_trial  # noqa: E402

EVERY = smd.SaveConfig(save_interval=1)


@pytest.fixture(autouse=True)
def no_hook_left() -> Iterator[None]:
    yield
    smd.del_hook()


@pytest.fixture
def warnings(caplog: pytest.LogCaptureFixture) -> Callable[[], list[str]]:
    caplog.set_level(logging.WARNING, logger="farandole")
    return lambda: [record.getMessage() for record in caplog.records]


def train(hook: smd.Hook, steps: int = 2) -> None:
    model = nn.Sequential(nn.Linear(2, 2))
    hook.register_module(model)
    for _ in range(steps):
        model(torch.ones(1, 2)).sum().backward()


# JSON.


def test_reductions_go_to_json_and_back() -> None:
    config = smd.ReductionConfig(["min"], abs_norms=("l2",), save_raw_tensor=True)
    found = json.loads(config.to_json())
    assert found == {
        "reductions": ["min"],
        "abs_reductions": [],
        "norms": [],
        "abs_norms": ["l2"],
        "save_raw_tensor": True,
        "save_shape": False,
    }
    again = smd.ReductionConfig.from_json(config.to_json())
    assert again.to_json_dict() == found
    assert smd.ReductionConfig.from_dict({"norms": ["l1"]}).keys() == {"l1"}


def test_steps_go_to_json_and_back() -> None:
    config = smd.SaveConfig(
        {smd.modes.TRAIN: smd.SaveConfigMode(3, end_step=9), smd.modes.EVAL: None}
    )
    found = json.loads(config.to_json())
    assert found["TRAIN"] == {
        "save_interval": 3, "start_step": 0, "end_step": 9, "save_steps": []
    }  # fmt: skip
    assert found["EVAL"] is None
    assert smd.SaveConfig.from_json(config.to_json()).to_json_dict() == found
    flat = smd.SaveConfig.from_dict({"save_interval": 2, "save_steps": [5]})
    assert [step for step in range(6) if flat.should_save_step(smd.modes.PREDICT, step)] == [
        *(0, 2, 4, 5)
    ]
    by_key = smd.SaveConfig.from_dict({smd.modes.EVAL: {"save_interval": 1}})
    assert by_key.should_save_step(smd.modes.EVAL, 1)


def test_collections_go_to_json_and_back() -> None:
    collection = smd.Collection(
        "mine", "relu", ["x"], smd.ReductionConfig(["max"]), smd.SaveConfigMode(4)
    )
    again = smd.Collection.from_json(collection.to_json())
    assert again.to_json_dict() == collection.to_json_dict()
    assert again.has("x")
    assert again.has("my_relu")
    assert not again.has("y")
    assert again.save_config.should_save_step(smd.modes.TRAIN, 8)
    assert smd.Collection.from_dict({"name": "empty"}).is_empty()


@pytest.mark.parametrize(
    ("call", "what"),
    [
        (lambda: smd.ReductionConfig.from_json("{"), "ReductionConfig"),
        (lambda: smd.ReductionConfig.from_json("[]"), "its type is list"),
        (lambda: smd.ReductionConfig.from_json("[" * 9999), "it is nested too deeply"),
        (lambda: smd.SaveConfig.from_json('{"TRAIN": 1e999}'), "not JSON compliant"),
        (lambda: smd.ReductionConfig.from_dict({"reduction": ["min"]}), "it has reduction"),
        (lambda: smd.SaveConfig.from_dict({"interval": 2}), "it has interval"),
        (lambda: smd.SaveConfig.from_dict({"TRAIN": {"interval": 2}}), "it has interval"),
        (lambda: smd.SaveConfig.from_dict({"TRAIN": {}, "TEST": {}}), "it has TEST"),
        (lambda: smd.SaveConfig.from_dict({"TRAIN": 3}), "its type is int"),
        (lambda: smd.SaveConfig.from_dict(3), "its type is int"),
        (lambda: smd.Collection.from_dict({}), "it has no name"),
        (lambda: smd.Collection.from_dict({"name": "a", "save_config": {"x": 1}}), "it has x"),
    ],
)
def test_what_describes_nothing_is_refused(call: Callable[[], Any], what: str) -> None:
    with pytest.raises(farandole.InvalidArgument, match=r"\[debugger-config\]") as caught:
        call()
    assert what in str(caught.value)


def test_unknown_reductions_are_refused_as_before() -> None:
    with pytest.raises(farandole.InvalidArgument, match=r"\[debugger-reduction\]"):
        smd.ReductionConfig.from_dict({"reductions": ["median"]})


def test_a_hook_of_a_file_and_of_default_values(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert json_config.CONFIG_FILE_PATH_ENV_STR == "SMDEBUG_CONFIG_FILE_PATH"
    path = tmp_path / "hook.json"
    path.write_text(json.dumps({"LocalPath": str(tmp_path / "out")}))
    monkeypatch.setenv(json_config.CONFIG_FILE_PATH_ENV_STR, str(path))
    defaults = {"save_interval": "1", "save_all": "true"}
    hook = json_config.create_hook_from_json_config(smd.Hook, default_values=defaults)
    train(hook)
    hook.close()
    assert create_trial(tmp_path / "out").steps() == [0, 1]
    with pytest.raises(FileNotFoundError):
        json_config.create_hook_from_json_config(smd.Hook, tmp_path / "none.json")


# Names that save nothing.


def test_a_misspelt_collection_is_named_once(
    tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    names = ["gradient", "weights", "wholly_other"]
    hook = smd.Hook(tmp_path, save_config=EVERY, include_collections=names)
    train(hook, 3)
    hook.close()
    first, second = warnings()
    assert "the collection 'gradient' has no tensors" in first
    assert "the nearest name is 'gradients'" in first
    assert "'wholly_other'" in second
    assert "give it an include_regex" in second


def test_collections_that_have_something_are_not_named(
    tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    names = ["regex", "names", "modules", "saved", "metrics", "default"]
    hook = smd.Hook(tmp_path, save_config=EVERY, include_collections=names)
    hook.get_collection("regex").include("x")
    hook.get_collection("names").add_tensor_name("x")
    model = nn.Linear(1, 1)
    hook.get_collection("modules").add_module_tensors(model)
    hook.register_module(model)
    for _ in range(2):
        model(torch.ones(1, 1)).sum().backward()
        hook.save_tensor("x", torch.ones(1), "saved")
    hook.close()
    assert warnings() == []


def test_steps_that_are_not_saved_name_nothing(
    tmp_path: Path, warnings: Callable[[], list[str]]
) -> None:
    never = smd.SaveConfig(save_interval=100, start_step=100)
    hook = smd.Hook(tmp_path, save_config=never, include_collections=["gradient"])
    train(hook)
    hook.close()
    assert warnings() == []


def test_a_state_that_is_none_is_refused_and_changes_nothing(tmp_path: Path) -> None:
    hook = smd.Hook(tmp_path, save_config=EVERY)
    train(hook)
    before = hook.state_dict()
    for state in ({}, {"TRAIN": 3}, {**before, "TEST": 1}, None):
        with pytest.raises(farandole.InvalidArgument, match=r"(?s)GLOBAL.*\[debugger-state\]"):
            hook.load_state_dict(state)
    assert hook.state_dict() == before


# Exceptions and files of the originals.


def test_a_met_condition_is_an_error_of_smdebug() -> None:
    met = exceptions.RuleEvaluationConditionMet("Rule", 3)
    assert isinstance(met, exceptions.SMDebugError)
    assert (met.rule_name, met.step, met.end_of_rule) == ("Rule", 3, False)


def test_trials_of_smdebug_itself_are_refused(tmp_path: Path) -> None:
    events = tmp_path / "events" / "000000000000"
    events.mkdir(parents=True)
    (events / "000000000000_worker_0.tfevents").touch()
    (tmp_path / "index").mkdir()
    with pytest.raises(farandole.NotSupported, match=r"\[debugger-foreign-trial\]"):
        create_trial(tmp_path)
    hook = smd.Hook(tmp_path, save_config=EVERY, save_all=True)  # ours goes on there
    train(hook)
    hook.close()
    assert create_trial(tmp_path).steps() == [0, 1]


def test_files_of_sagemaker_profiler_are_refused(tmp_path: Path) -> None:
    (tmp_path / "framework").mkdir()
    (tmp_path / "framework" / "1_2.smpraw").touch()
    with pytest.raises(farandole.NotSupported, match=r"\[profile-foreign\]"):
        farandole.profiler.Profile(tmp_path)
    farandole.profiler.start(tmp_path, system_interval_ms=None)
    with farandole.profiler.annotate("Here"):
        pass
    farandole.profiler.stop()
    assert len(farandole.profiler.Profile(tmp_path).timeline.ranks()) == 1


def test_options_that_are_true_or_false() -> None:
    import argparse

    from smdebug.profiler.utils import str2bool

    assert [str2bool(text) for text in ("True", "1", "yes", True)] == [True] * 4
    assert [str2bool(text) for text in ("False", "0", "n", False)] == [False] * 4
    with pytest.raises(argparse.ArgumentTypeError, match="maybe"):
        str2bool("maybe")
