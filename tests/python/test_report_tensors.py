# SPDX-License-Identifier: Apache-2.0
"""`farandole report --tensors` has what the debugger's rules find beside those of the profiler."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from farandole.report import command_line
from farandole.report.tensor_rules import RULES, reports_of
from torch import nn

from debugger_training import ELEMENTS, Net, batches, seeded, train
from profile_fixtures import write_steps

COLLECTIONS = ["gradients", "weights", "relu_output"]


def dying(folder: Path, *, at: int = 2) -> Any:
    """A training whose ReLU dies after a step."""
    model = seeded(Net)

    @torch.no_grad()
    def die(step: int) -> None:
        if step == at:
            model.get_parameter("first.bias").fill_(-100.0)

    return train(folder, model, batches(6), after_step=die, include_collections=COLLECTIONS)


def profile(folder: Path) -> Path:
    write_steps(folder, 5, lambda rank, step: {})
    return folder


def test_each_finding_is_reported_as_that_of_a_profiler_rule(tmp_path: Path) -> None:
    reports = {report.rule: report for report in reports_of(dying(tmp_path))}
    assert list(reports) == [rule.__name__ for rule in RULES]
    dead = reports["DeadRelu"]
    assert (dead.fired, dead.triggered, dead.datapoints) == (True, 3, 6)
    assert dead.what.startswith("step 3: 'activation_output_0' of worker_0 has 100.0 % of its")
    assert dead.figures == {
        "first_step": 3,
        "last_step": 5,
        "steps": 3,
        "times": {"activation_output_0": 3},
    }
    assert dead.advice
    quiet, blind = reports["NonfiniteGradient"], reports["WeightUpdateRatio"]
    assert (quiet.fired, quiet.has_data, quiet.datapoints) == (False, True, 4 * 6)
    assert (blind.has_data, blind.what) == (
        False,
        "it takes weights, with all elements: not saved.",
    )


def test_a_sound_training_makes_no_rule_fire(tmp_path: Path) -> None:
    trial = train(
        tmp_path,
        seeded(lambda: Net(nn.Tanh())),
        batches(8),
        include_collections=["gradients", "weights", "tanh_input"],
        reduction_config=ELEMENTS,
    )
    assert [report.rule for report in reports_of(trial) if report.fired] == []


def test_labels_and_predictions_count_by_their_names(tmp_path: Path) -> None:
    from farandole.debugger import Hook, SaveConfig, create_trial

    hook = Hook(tmp_path, save_config=SaveConfig(save_interval=1))
    model = seeded(Net)
    hook.register_module(model)
    model(torch.zeros(2, 4))
    for name in ("labels", "predictions"):
        hook.save_tensor(name, torch.tensor([0, 1]), name)
    hook.close()
    (report,) = (each for each in reports_of(create_trial(tmp_path)) if each.rule == "Confusion")
    assert (report.fired, report.has_data) == (False, True)


def test_the_page_and_the_figures_have_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    dying(tmp_path / "tensors")
    (file,) = (tmp_path / "tensors").rglob("*.jsonl")
    file.write_text(file.read_text() + "damaged\n")
    output, figures = tmp_path / "report.html", tmp_path / "report.json"
    arguments = [str(profile(tmp_path / "profile")), "--tensors", str(tmp_path / "tensors")]
    assert command_line.main([*arguments, "-o", str(output), "--json", str(figures)]) == 0
    assert "DeadRelu fired" in output.read_text()
    found = json.loads(figures.read_text())
    assert found["rules"][0]["fired"]
    assert [rule["rule"] for rule in found["rules"]].count("DeadRelu") == 1
    assert found["unread"] == [f"{tmp_path / 'tensors'}: 1 damaged lines were left out."]
    assert "DeadRelu: step 3: 'activation_output_0'" in capsys.readouterr().out


def test_two_runs_are_compared(tmp_path: Path) -> None:
    folder, figures = str(profile(tmp_path / "profile")), tmp_path / "report.json"
    dying(tmp_path / "before")
    dying(tmp_path / "after", at=-1)
    tensors = [f"--tensors={tmp_path / name}" for name in ("before", "after")]
    outputs = ["-o", str(tmp_path / "report.html"), "--json", str(figures)]
    assert command_line.main(["--compare", folder, folder, *tensors, *outputs]) == 0
    rules = {rule["rule"]: rule for rule in json.loads(figures.read_text())["rules"]}
    states = [rules["DeadRelu"][when]["state"] for when in ("before", "after")]
    assert states == ["fired", "did not fire"]


def test_a_folder_that_is_missing_and_one_too_many_are_status_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert command_line.main([str(tmp_path), "--tensors", str(tmp_path / "nowhere")]) == 2
    assert "[debugger-trial]" in capsys.readouterr().err
    with pytest.raises(SystemExit) as ended:
        command_line.main([str(tmp_path), "--tensors", "a", "--tensors", "b"])
    assert ended.value.code == 2


def test_a_folder_without_steps_is_no_data(tmp_path: Path) -> None:
    (tmp_path / "tensors").mkdir()
    from farandole.debugger import create_trial

    assert not any(report.has_data for report in reports_of(create_trial(tmp_path)))
