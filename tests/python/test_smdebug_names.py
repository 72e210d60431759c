# SPDX-License-Identifier: Apache-2.0
"""smdebug by its own names: hooks, trials, rules, readers; the example on two ranks and on one."""

from __future__ import annotations

import importlib
import importlib.util
import json
import pkgutil
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
from farandole_compat import finder
from torch import nn

import run_command

finder.install()
import smdebug.pytorch as smd  # noqa: E402
from smdebug import exceptions  # noqa: E402
from smdebug.rules import Rule, VanishingGradient, invoke_rule  # noqa: E402
from smdebug.trials import create_trial  # noqa: E402

EXAMPLES = Path(__file__).parents[2] / "examples" / "sagemaker"
ABSENT = {
    "smdebug.tensorflow",
    "smdebug.mxnet",
    "smdebug.xgboost",
    "smdebug.rules.action",
    "smdebug.profiler.analysis.notebook_utils",
    "smdebug.profiler.analysis.python_profile_analysis",
    "smdebug.profiler.analysis.utils.pandas_data_analysis",
    "smdebug.profiler.analysis.utils.pytorch_dataloader_analysis",
}


@pytest.fixture(autouse=True)
def no_hook_left() -> Iterator[None]:
    yield
    smd.del_hook()


def train(hook: smd.Hook, steps: int = 2) -> None:
    torch.manual_seed(0)
    model, loss = nn.Sequential(nn.Linear(4, 3)), nn.MSELoss()
    hook.register_hook(model)
    hook.register_loss(loss)
    for _ in range(steps):
        loss(model(torch.ones(2, 4)), torch.zeros(2, 3)).backward()
    hook.close()


def test_every_module_is_imported_or_says_what_is_offered() -> None:
    import smdebug

    names = {each.name for each in pkgutil.walk_packages(smdebug.__path__, "smdebug.", lambda _: 0)}
    assert names > ABSENT
    for name in names - ABSENT:
        importlib.import_module(name)
    for name in ABSENT:
        with pytest.raises(ImportError, match=rf"{name} is not offered(?s:.*)fix: ") as error:
            importlib.import_module(name)
        assert isinstance(error.value, farandole.NotSupported)


def test_without_a_reduction_config_all_elements_are_saved(tmp_path: Path) -> None:
    every = smd.SaveConfig(save_interval=1)
    hook = smd.Hook(str(tmp_path), save_config=every, include_collections=["weights"])
    assert smd.get_hook() is hook
    assert hook.worker == "worker_0"
    assert hook.mode == smd.modes.GLOBAL
    train(hook)
    weight = create_trial(f" {tmp_path} ").tensor("Sequential_0.weight")
    assert weight.value(1).shape == (3, 4)
    assert weight.reduction_value(1, "max") == weight.value(1).max()

    config = smd.ReductionConfig(reductions=["min"])
    hook = smd.Hook(tmp_path / "b", reduction_config=config, save_config=every, save_all=True)
    train(hook)
    with pytest.raises(exceptions.TensorUnavailableForStep):
        create_trial(tmp_path / "b").tensor("Sequential_0.weight").value(1)


def test_the_configuration_of_the_container(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from farandole.sagemaker import places

    path = tmp_path / "hook.json"
    monkeypatch.setenv("SMDEBUG_CONFIG_FILE_PATH", str(path))
    assert smd.get_hook() is None
    assert smd.get_hook(create_if_not_exists=True) is None  # there is no file
    with pytest.raises(FileNotFoundError):
        smd.Hook.create_from_json_file()
    collections = [{"CollectionName": "biases", "CollectionParameters": {"save_interval": "1"}}]
    path.write_text(json.dumps({"CollectionConfigurations": collections}))
    monkeypatch.setattr(places, "TENSORS", tmp_path / "opt" / "tensors")
    hook = smd.get_hook(create_if_not_exists=True)
    assert hook is not None
    assert smd.get_hook() is hook
    train(hook)
    bias = create_trial(tmp_path / "opt" / "tensors").tensor("Sequential_0.bias")
    assert bias.value(1).shape == (3,)

    (tmp_path / "file").touch()
    monkeypatch.setattr(places, "TENSORS", tmp_path / "file" / "tensors")
    with pytest.raises(farandole.NotSupported, match=r"(?s)file/tensors.*pass out_dir"):
        smd.Hook()
    for misuse in ({"out_dir": "s3://bucket/run"}, {"tensorboard_dir": "s3://bucket/run"}):
        with pytest.raises(farandole.NotSupported, match=r"(?s)'s3://bucket/run'.*into a folder"):
            smd.Hook(**{"out_dir": tmp_path, **misuse})
    with pytest.raises(exceptions.SMDebugTypeError, match=r"argument-type"):
        smd.set_hook("no hook")
    with pytest.raises(farandole.NotSupported, match=r"(?s)trace_events.*annotate"):
        hook.record_trace_events(timestamp=1.0, training_phase="data")


def test_trials_have_smdebugs_methods(tmp_path: Path) -> None:
    hook = smd.Hook(
        tmp_path, save_config=smd.SaveConfig(save_interval=1), include_collections=["inputs"]
    )
    hook.set_mode(smd.modes.EVAL)
    hook.save_tensor("labels_0", torch.tensor([1, 2]), "labels")
    train(hook, 1)
    trial = create_trial(str(tmp_path), name="mine", parallel=False, check=True)
    assert trial.name == "mine"
    assert trial.mode_modestep(0) == (smd.modes.EVAL, 0)
    assert trial.tensor_names(True, step=0, regex="^Seq") == ["Sequential_input_0"]
    assert [each.tolist() for each in trial.inputs(0)] == [[[1.0] * 4] * 2]
    assert [each.tolist() for each in trial.labels(0)] == [[1, 2]]
    assert trial.predictions(0) == []
    with pytest.raises(farandole.NotSupported, match=r"(?s)s3://.*copy it here"):
        create_trial("s3://bucket/prefix")
    with pytest.raises(farandole.NotSupported, match=r"Profile\(path\)"):
        create_trial(str(tmp_path), profiler=True)
    with pytest.raises(TypeError, match="colour"):
        create_trial(str(tmp_path), colour="red")


def test_collections_of_other_frameworks_have_what_is_saved_into_them(tmp_path: Path) -> None:
    hook = smd.Hook(tmp_path, save_config=smd.SaveConfig(save_interval=1))
    hook.save_tensor("depths", torch.tensor([1, 2]), smd.CollectionKeys.TREES)
    hook.close()
    trial = create_trial(tmp_path)
    assert trial.tensor_names(collection=smd.CollectionKeys.TREES) == ["depths"]
    assert smd.CollectionKeys.LOSSES == "losses"


def test_the_steps_of_a_mode_may_be_changed() -> None:
    config = smd.SaveConfig(save_interval=5)
    config.set_save_config(smd.modes.EVAL, smd.SaveConfigMode(save_interval=2))
    assert config.get_save_config(smd.modes.EVAL).save_interval == 2
    assert config.should_save_step(smd.modes.EVAL, 2)
    assert not config.should_save_step(smd.modes.TRAIN, 2)


class LargeLoss(Rule):
    """Written as for smdebug."""

    def __init__(self, base_trial: Any, action_str: str = "", other_trials: Any = None) -> None:
        super().__init__(base_trial, action_str, other_trials)

    def set_required_tensors(self, step: int) -> None:
        self.req_tensors.add("MSELoss", steps=[step], should_match_regex=True)

    def invoke_at_step(self, step: int) -> bool:
        assert self.req_tensors.get_tensor_steps("MSELoss_output_0") == [step]
        assert self.req_tensors.get_names() == ["MSELoss_output_0"]
        (loss,) = self.req_tensors.get()
        self.report["Datapoints"] += 1
        return bool(loss.value(step) > 0)


def test_a_rule_of_ones_own_with_actions(tmp_path: Path) -> None:
    train(smd.Hook(tmp_path, save_config=smd.SaveConfig(save_interval=1)))
    trial = create_trial(tmp_path, name="run-1")
    stop = '[{"name": "StopTraining", "training_job_prefix": "run"}]'
    rule = LargeLoss(trial, stop)
    with pytest.raises(exceptions.RuleEvaluationConditionMet) as found:
        invoke_rule(rule_obj=rule, start_step=None, raise_eval_cond=True)
    assert (found.value.rule_name, found.value.step) == ("LargeLoss", 0)
    assert (tmp_path / "stop").exists()
    with pytest.raises(exceptions.NoMoreData):
        invoke_rule(rule, start_step=1)
    assert rule.report["Datapoints"] == 2
    with pytest.raises(exceptions.NoMoreData):
        invoke_rule(VanishingGradient(trial))  # a built-in one
    with pytest.raises(farandole.NotSupported, match=r"Webhook"):
        LargeLoss(trial, '{"name": "email", "endpoint": "me@example.com"}')
    for wrong in ("{", "[1]", '{"name": "call"}'):
        with pytest.raises(farandole.InvalidArgument, match=r"rule-actions"):
            LargeLoss(trial, wrong)


@pytest.fixture
def profile(tmp_path: Path) -> Path:
    farandole.profiler.start(tmp_path, system_interval_ms=100)
    for _ in range(3):
        with farandole.profiler.annotate("Work"):
            time.sleep(0.1)
        farandole.profiler.step()
    farandole.profiler.stop()
    return tmp_path


def test_readers_of_profiles(profile: Path) -> None:
    from smdebug.profiler import LocalAlgorithmMetricsReader, S3SystemMetricsReader
    from smdebug.profiler.system_metrics_reader import LocalSystemMetricsReader
    from smdebug.profiler.utils import TimeUnits

    system = LocalSystemMetricsReader(str(profile))
    system.refresh_event_file_list()
    end_s = time.time() + 1
    events = system.get_events(0, end_s, TimeUnits.SECONDS, event_type="cpu")
    assert {event.type for event in events} == {"cpu"}
    assert {event.node_id for event in events} == {"algo-1"}
    first = system.get_timestamp_of_first_available_file()
    assert 0 <= first - events[0].timestamp * 1e6 + 1 <= 2
    assert system.get_timestamp_of_latest_available_file() > first

    framework = LocalAlgorithmMetricsReader(str(profile))
    works = [event for event in framework.get_events(0, end_s * 1e6) if event.event_name == "Work"]
    assert len(works) == 3
    assert works[0].event_phase == "annotation"
    assert 0.1e6 <= works[0].duration < 1e6
    assert works[0].end_time == pytest.approx(works[0].start_time + works[0].duration)
    inside = framework.get_events_by_step(1, 2, event_type="annotation")
    assert [event.event_name for event in inside] == ["Work"]
    assert framework.get_events_by_step(50, 60) == []
    with pytest.raises(farandole.NotSupported, match=r"aws s3 sync"):
        S3SystemMetricsReader("s3://bucket/prefix")


def test_a_part_of_a_timeline_becomes_one_file(profile: Path, tmp_path: Path) -> None:
    from smdebug.profiler.analysis.utils.merge_timelines import MergedTimeline, MergeUnit

    merged = MergedTimeline(str(profile), output_directory=str(tmp_path / "merged"))
    of_step = json.loads(Path(merged.merge_timeline(1, 3, unit=MergeUnit.STEP)).read_text())
    assert [each["name"] for each in of_step if each.get("cat") == "annotation"] == ["Work"] * 2
    assert of_step[0] == {
        "name": "process_name",
        "ph": "M",
        "pid": 0,
        "args": {"name": "rank 0 (algo-1)"},
    }
    assert min(each["ts"] for each in of_step[1:]) == 0
    nothing = Path(merged.merge_timeline(0, 1, unit="time"))
    assert json.loads(nothing.read_text()) == []
    merged.close()


def test_tables_have_smdebugs_columns(profile: Path) -> None:
    from smdebug.profiler.analysis.utils.profiler_data_to_pandas import PandasFrame

    if importlib.util.find_spec("pandas") is None:
        with pytest.raises(farandole.NotSupported, match=r"sagemaker-pandas"):
            PandasFrame(str(profile))
        return
    frame = PandasFrame(str(profile))
    system = frame.get_all_system_metrics(selected_system_metrics=["MemoryUsedPercent"])
    assert set(system["type"]) == {"memory"}
    assert system["timestamp_us"].min() >= 0
    framework = frame.get_all_framework_metrics(["annotation"])
    assert set(framework["framework_metric"]) == {"Work"}
    assert (framework["end_time_us"] > framework["start_time_us"]).all()
    _, of_step = frame.get_profiler_data_by_step(1, 1)
    assert sorted(of_step["framework_metric"]) == ["Work", "step"]


def example(path: Path, count: int) -> list[str]:
    """What rank 0 prints with so many ranks."""
    config = {
        "LocalPath": str(path / f"out{count}"),
        "HookParameters": {"save_interval": "4"},
        "CollectionConfigurations": [
            {"CollectionName": "weights"},
            {"CollectionName": "gradients", "CollectionParameters": {"save_interval": "2"}},
        ],
    }
    file = path / f"hook{count}.json"
    file.write_text(json.dumps(config))
    script = EXAMPLES / "smdebug_script.py"
    assert "farandole" not in re.sub(r'""".*?"""', "", script.read_text(), flags=re.DOTALL)
    done = run_command.run("-n", str(count), script, SMDEBUG_CONFIG_FILE_PATH=str(file))
    assert done.returncode == 0, done.stderr[-3000:]
    lines = [line.removeprefix("[0] ") for line in done.stdout.splitlines()]
    return [line for line in lines if line.startswith(("steps", "gradient", "violations"))]


@pytest.mark.system
def test_the_script_sees_on_two_ranks_what_one_process_sees(tmp_path: Path) -> None:
    alone, together = example(tmp_path, 1), example(tmp_path, 2)
    assert together[0] == "steps [0, 4] shape (8, 4)"
    assert together == alone  # gradients are averages of all ranks
    assert len(together) == 6
    assert together[-1] == "violations 3"


@pytest.mark.system
def test_natively(tmp_path: Path) -> None:
    done = run_command.run("-n", "2", EXAMPLES / "smdebug_native.py", str(tmp_path / "out"))
    assert done.returncode == 0, done.stderr[-3000:]
    assert "0 gradients have vanished" in done.stdout
