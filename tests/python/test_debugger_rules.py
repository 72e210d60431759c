# SPDX-License-Identifier: Apache-2.0
"""Each rule finds its fault, names step and tensor, and is silent about a training without it."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import farandole
import pytest
import torch
from farandole.debugger import (
    Hook,
    ModeKeys,
    Rule,
    RuleEvaluationConditionMet,
    StepUnavailable,
    create_trial,
    invoke_rule,
    record_file,
    rules,
)
from torch import nn

from debugger_training import ELEMENTS, EVERY_STEP, Net, batches, found_by, losses, seeded, train


def healthy(path: Path, **options: Any) -> Any:
    return train(path, seeded(Net), batches(12), **options)


@torch.no_grad()
def set_parameters(model: nn.Module, values: dict[str, float]) -> Callable[[], None]:
    for name, value in values.items():
        model.get_parameter(name).fill_(value)
    return lambda: None


def test_dead_relu_names_the_layer_and_the_step_in_which_it_died(tmp_path: Path) -> None:
    model = seeded(Net)

    def die(step: int) -> None:
        if step == 2:
            set_parameters(model, {"first.bias": -100.0})

    trial = train(
        tmp_path / "a", model, batches(5), after_step=die, include_collections=["relu_output"]
    )
    rule = rules.DeadRelu(trial)
    assert found_by(rule) == [(3, "activation_output_0"), (4, "activation_output_0")]
    assert rule.findings[0].text == "has 100.0 % of its neurons inactive"
    whole = healthy(tmp_path / "b", include_collections=["relu_output"])
    assert found_by(rules.DeadRelu(whole)) == []
    assert found_by(rules.DeadRelu(trial, threshold_layer=100.0)) == []
    regex = rules.DeadRelu(trial, tensor_regex="activation_output")
    assert [step for step, _ in found_by(regex)] == [3, 4]


def test_dead_relu_counts_neurons_and_not_elements(tmp_path: Path) -> None:
    model = seeded(Net)
    with torch.no_grad():
        model.first.bias[:4] = -100.0  # half of the neurons
    trial = train(tmp_path, model, batches(1), include_collections=["relu_output"])
    assert found_by(rules.DeadRelu(trial, threshold_layer=49.9)) == [(0, "activation_output_0")]
    assert found_by(rules.DeadRelu(trial)) == []


@pytest.mark.parametrize(("activation", "bias"), [(nn.Tanh, 20.0), (nn.Sigmoid, -40.0)])
def test_saturated_activation(tmp_path: Path, activation: type[nn.Module], bias: float) -> None:
    model = seeded(lambda: Net(activation()))
    name = f"{activation.__name__.lower()}_input"
    good = train(tmp_path / "a", model, batches(2), include_collections=[name])
    assert found_by(rules.SaturatedActivation(good)) == []
    model = seeded(lambda: Net(activation()))
    set_parameters(model, {"first.bias": bias})
    bad = train(tmp_path / "b", model, batches(1), include_collections=[name])
    assert found_by(rules.SaturatedActivation(bad)) == [(0, "activation_input_0")]
    low = {f"threshold_{activation.__name__.lower()}_{end}": 99.0 for end in ("max",)}
    low |= {f"threshold_{activation.__name__.lower()}_{end}": -99.0 for end in ("min",)}
    assert found_by(rules.SaturatedActivation(bad, **low)) == []


def test_exploding_tensor_and_nonfinite_gradient(tmp_path: Path) -> None:
    model = seeded(Net)

    def explode(step: int) -> None:
        if step == 1:
            set_parameters(model, {"second.bias": float("inf")})

    bad = train(
        tmp_path / "a",
        model,
        batches(3),
        after_step=explode,
        include_collections=["gradients", "biases"],
        include_regex="activation_output",
    )
    every = found_by(rules.ExplodingTensor(bad))
    assert (2, "Net_second.bias") in every
    assert {step for step, _ in every} == {2}
    assert (2, "CrossEntropyLoss_output_0") in every
    only_nan = found_by(rules.ExplodingTensor(bad, only_nan=True))
    assert (2, "Net_second.bias") not in only_nan  # it has Inf alone
    assert only_nan
    rule = rules.NonfiniteGradient(bad)
    assert (2, "gradient/Net_second.weight") in found_by(rule)
    assert all(finding.worker == "worker_0" for finding in rule.findings)
    good = healthy(tmp_path / "b", include_collections=["gradients"])
    assert found_by(rules.NonfiniteGradient(good)) == []
    assert found_by(rules.ExplodingTensor(good)) == []


def test_vanishing_gradient(tmp_path: Path) -> None:
    model = seeded(lambda: Net(nn.Sigmoid()))
    set_parameters(model, {"first.bias": 30.0})  # where the sigmoid is flat
    bad = train(tmp_path / "a", model, batches(1), include_collections=["gradients"])
    vanished = {"gradient/Net_first.weight", "gradient/Net_first.bias"}
    assert {name for _, name in found_by(rules.VanishingGradient(bad))} == vanished
    good = healthy(tmp_path / "b", include_collections=["gradients"])
    assert found_by(rules.VanishingGradient(good)) == []
    assert len(found_by(rules.VanishingGradient(good, threshold=1e9))) == 4 * 12


def test_all_zero(tmp_path: Path) -> None:
    model = seeded(Net)
    set_parameters(model, {"second.weight": 0.0})  # so nothing comes to the first layer
    bad = train(tmp_path / "a", model, batches(1), include_collections=["gradients"])
    zero = [(0, "gradient/Net_first.bias"), (0, "gradient/Net_first.weight")]
    assert found_by(rules.AllZero(bad, ["gradients"])) == zero
    assert found_by(rules.AllZero(bad, tensor_regex="second")) == []
    good = healthy(tmp_path / "b", include_collections=["gradients"])
    assert found_by(rules.AllZero(good, ["gradients"])) == []


def test_tensor_variance(tmp_path: Path) -> None:
    trial = healthy(tmp_path, include_collections=["weights"], reduction_config=ELEMENTS)
    variance = trial.tensor("Net_first.weight").value(3).var(ddof=1)

    def judged(**thresholds: float) -> bool:
        rule = rules.TensorVariance(trial, tensor_regex="^Net_first.weight", **thresholds)
        return (3, "Net_first.weight") in found_by(rule)

    assert judged(max_threshold=variance * 0.999)
    assert not judged(max_threshold=variance * 1.001)
    assert judged(min_threshold=variance * 1.001)
    assert not judged(min_threshold=variance * 0.999)
    assert not judged()


@pytest.mark.parametrize("config", [None, ELEMENTS])
def test_unchanged_tensor(tmp_path: Path, config: Any) -> None:
    options = {"include_collections": ["weights"], "reduction_config": config}
    model = seeded(Net)
    model.first.weight.requires_grad_(False)
    bad = train(tmp_path / "a", model, batches(4), **options)
    expected = [(2, "Net_first.weight"), (3, "Net_first.weight")]
    assert found_by(rules.UnchangedTensor(bad, ["weights"])) == expected
    assert found_by(rules.UnchangedTensor(bad, ["weights"], num_steps=4)) == expected[1:]
    good = healthy(tmp_path / "b", **options)
    assert found_by(rules.UnchangedTensor(good, ["weights"])) == []


def test_weight_update_ratio_is_that_of_the_norms(tmp_path: Path) -> None:
    options = {"include_collections": ["weights"], "reduction_config": ELEMENTS}
    good = healthy(tmp_path / "a", **options)
    assert found_by(rules.WeightUpdateRatio(good)) == []
    tensor = good.tensor("Net_first.weight")
    first, last = (torch.from_numpy(tensor.value(step)) for step in (3, 5))
    ratio = float((last - first).norm() / first.norm())
    for factor, expected in ((0.999, True), (1.001, False)):
        rule = rules.WeightUpdateRatio(good, num_steps=2, large_threshold=ratio * factor)
        assert ((5, "Net_first.weight") in found_by(rule)) == expected
    stuck = train(tmp_path / "b", seeded(Net), batches(2), lr=0.0, **options)
    names = {name for _, name in found_by(rules.WeightUpdateRatio(stuck))}
    assert names == {"Net_first.weight", "Net_second.weight"}
    wild = train(tmp_path / "c", seeded(Net), batches(2), lr=1e4, **options)
    assert (1, "Net_second.weight") in found_by(rules.WeightUpdateRatio(wild))


def test_poor_weight_initialization(tmp_path: Path) -> None:
    options = {"include_collections": ["weights", "gradients", "relu_input"]}
    good = healthy(tmp_path / "a", lr=0.5, **options)
    assert found_by(rules.PoorWeightInitialization(good, patience=9)) == []

    model = seeded(Net)
    with torch.no_grad():
        model.first.weight.mul_(100)
    unequal = train(tmp_path / "b", model, batches(1), **options)
    rule = rules.PoorWeightInitialization(unequal)
    assert (0, "Net_first.weight") in found_by(rule)
    assert "'Net_second.weight'" in rule.findings[0].text

    model = seeded(Net)
    with torch.no_grad():
        model.second.weight.mul_(1e-4)
    faint = train(tmp_path / "c", model, batches(12), lr=0.0, **options)
    rule = rules.PoorWeightInitialization(faint, threshold=1e12)
    assert (0, "gradient/Net_first.weight") in found_by(rule)
    assert {step for step, name in found_by(rule) if name == "gradient/Net_first.weight"} == {
        *range(10)
    }

    same = ((x, y) for x, y in list(batches(1)) * 12)
    flat = train(tmp_path / "d", seeded(Net), same, lr=0.0, **options)
    rule = rules.PoorWeightInitialization(flat)
    assert found_by(rule)[0] == (5, "CrossEntropyLoss_output_0")


def test_loss_not_decreasing(tmp_path: Path) -> None:
    falling = [(10.0 - i, 10.0 - i) for i in range(8)]
    assert found_by(rules.LossNotDecreasing(losses(tmp_path / "a", falling))) == []
    stuck = losses(tmp_path / "b", [*falling, *[(3.0, 3.0)] * 12])
    found = found_by(rules.LossNotDecreasing(stuck))
    assert found[0] == (24, "L1Loss_output_0")  # ten steps after the first loss of 3
    in_training = rules.LossNotDecreasing(stuck, mode=ModeKeys.TRAIN, num_steps=4)
    assert found_by(in_training)[0] == (22, "L1Loss_output_0")  # step 11 of TRAIN; 7 is 3 as well
    nan = losses(tmp_path / "c", [(1.0, 1.0), (float("nan"), 1.0)])
    assert found_by(rules.LossNotDecreasing(nan, num_steps=2))[0] == (2, "L1Loss_output_0")
    slow = losses(tmp_path / "d", [(100.0, 100.0), (99.8, 99.8)])
    assert found_by(rules.LossNotDecreasing(slow, num_steps=2)) == []
    assert len(found_by(rules.LossNotDecreasing(slow, num_steps=2, diff_percent=0.3))) == 2


def test_overfit_waits_for_its_patience(tmp_path: Path) -> None:
    good = losses(tmp_path / "a", [(1.0, 1.05)] * 6)
    assert found_by(rules.Overfit(good)) == []
    bad = losses(tmp_path / "b", [(1.0, 1.05), (0.9, 1.2), (0.8, 0.8), (0.7, 1.2), (0.6, 1.3)])
    assert found_by(rules.Overfit(bad)) == [(9, "L1Loss_output_0")]
    assert found_by(rules.Overfit(bad, patience=0))[0] == (3, "L1Loss_output_0")
    assert found_by(rules.Overfit(bad, ratio_threshold=2.0)) == []
    assert found_by(rules.Overfit(bad, start_step=8)) == []


def test_overtraining_needs_both_losses_to_stay(tmp_path: Path) -> None:
    falling = [(10.0 - i, 10.0 - i) for i in range(5)]
    stays = [*falling, *[(6.0, 6.0)] * 12]
    assert found_by(rules.Overtraining(losses(tmp_path / "a", falling * 1))) == []
    found = found_by(rules.Overtraining(losses(tmp_path / "b", stays)))
    assert found[0] == (29, "L1Loss_output_0")  # the tenth validation after that of step 9
    validation_falls = [*falling, *[(6.0, 6.0 - i) for i in range(1, 7)]]
    assert found_by(rules.Overtraining(losses(tmp_path / "c", validation_falls))) == []


def labelled(path: Path, pairs: list[tuple[list[int], list[int]]]) -> Any:
    """A training whose model predicts, in each step, these classes where the labels are those."""
    data = (
        (torch.nn.functional.one_hot(torch.tensor(predicted), 3).float(), torch.tensor(labels))
        for labels, predicted in pairs
    )
    model = nn.Linear(3, 3, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.eye(3))
    return train(path, model, data, lr=0.0, include_regex="Loss_input", reduction_config=ELEMENTS)


def test_class_imbalance(tmp_path: Path) -> None:
    labels = [0] * 11 + [1] * 11 + [2]
    rare = labelled(tmp_path / "a", [(labels, labels)] * 2)
    rule = rules.ClassImbalance(rare, samples=46)
    assert found_by(rule) == [(1, "CrossEntropyLoss_input_1")]  # not before enough samples
    assert "class 2 2 times" in rule.findings[0].text
    assert found_by(rules.ClassImbalance(rare)) == []  # less than 500
    missed = labelled(tmp_path / "b", [([0, 1, 2] * 4, [0, 1, 1] * 4)])
    rule = rules.ClassImbalance(missed, samples=10, argmax=True)
    assert found_by(rule) == [(0, "CrossEntropyLoss_input_1")]
    assert "class 2, of which 4 of 4 are mispredicted" in rule.findings[0].text
    good = labelled(tmp_path / "c", [([0, 1, 2] * 4, [0, 1, 2] * 4)])
    assert found_by(rules.ClassImbalance(good, samples=10)) == []


def test_confusion(tmp_path: Path) -> None:
    names = {"labels": "CrossEntropyLoss_input_1", "predictions": "CrossEntropyLoss_input_0"}
    good = labelled(tmp_path / "a", [([0, 1, 2] * 4, [0, 1, 2] * 4)])
    assert found_by(rules.Confusion(good, **names)) == []
    bad = labelled(tmp_path / "b", [([0, 1, 2] * 4, [0, 1, 2] * 4), ([0, 1, 2], [0, 1, 1])])
    rule = rules.Confusion(bad, category_no=3, **names)
    assert found_by(rule) == [(1, "CrossEntropyLoss_input_0")] * 2
    assert [finding.text for finding in rule.findings] == [
        "has 50.0 % of label 1 where it says 1",
        "has 50.0 % of label 2 where it says 1",
    ]
    assert found_by(rules.Confusion(bad, min_diag=0.5, max_off_diag=0.5, **names)) == []


def test_labels_that_are_ignored_and_many_classes(tmp_path: Path) -> None:
    hook = Hook(tmp_path, save_config=EVERY_STEP)
    hook.save_tensor("labels", torch.tensor([-100, 0, 10**9, -100]), "labels")
    hook.save_tensor("predictions", torch.tensor([5, 0, 10**9, 7]), "predictions")
    hook.close()
    trial = create_trial(tmp_path)
    assert found_by(rules.Confusion(trial)) == []
    names = {"labels_regex": "labels", "predictions_regex": "predictions"}
    assert found_by(rules.ClassImbalance(trial, samples=1, **names)) == []


def test_a_worker_without_predictions_is_left_out(tmp_path: Path) -> None:
    tensor = {"dtype": "int64", "shape": [], "value": 1}
    collections = {
        name: {"include_regex": [f"^{name}$"], "tensor_names": []}
        for name in ("labels", "predictions")
    }
    for worker, names in enumerate((["labels"], ["labels", "predictions"])):
        writer = record_file.RecordWriter(tmp_path / "tensors", f"worker_{worker}", 2)
        writer.write({"collections": collections})
        step = {"mode": "TRAIN", "step": 0, "global": 0, "time": 0}
        writer.write({**step, "tensors": dict.fromkeys(names, tensor)})
        writer.close()
    trial = create_trial(tmp_path)
    assert found_by(rules.Confusion(trial)) == []
    regexes = {"labels_regex": "labels", "predictions_regex": "predictions"}
    assert found_by(rules.ClassImbalance(trial, samples=1, **regexes)) == []


def test_similar_across_runs(tmp_path: Path) -> None:
    options = {"include_collections": ["weights"]}
    first = healthy(tmp_path / "a", **options)
    again = healthy(tmp_path / "b", **options)
    other = train(tmp_path / "c", seeded(Net), batches(12), lr=0.2, **options)
    assert found_by(rules.SimilarAcrossRuns(first, again)) == []
    rule = rules.SimilarAcrossRuns(first, [other], ["weights"])
    found = found_by(rule)
    assert found[:2] == [(1, "Net_first.weight"), (1, "Net_second.weight")]  # step 0 is the same
    assert rule.findings[0].text == "differs from that of 'c'"


def test_stalled_training(tmp_path: Path) -> None:
    import time

    def sleep(step: int) -> None:
        if step == 1:
            time.sleep(0.4)

    trial = train(tmp_path, seeded(Net), batches(4), after_step=sleep)
    assert found_by(rules.StalledTrainingRule(trial, threshold=0.3)) == [(2, None)]
    assert found_by(rules.StalledTrainingRule(trial)) == []


def test_stalled_training_is_stopped_while_it_is_silent(tmp_path: Path) -> None:
    hook = farandole.debugger.Hook(tmp_path, save_config=EVERY_STEP)
    hook.save_scalar("x", 1.0)
    rule = rules.StalledTrainingRule(
        create_trial(tmp_path), threshold=0.1, stop_training_on_fire=True
    )
    with pytest.raises(RuleEvaluationConditionMet, match="StalledTrainingRule at step 1: step 1"):
        invoke_rule(rule, raise_eval_cond=True, start_step=1)
    assert "was awaited in vain" in hook.stop_file.read_text()
    hook.close()


def images(path: Path, mean: float, batch: int, steps: int) -> Any:
    data = (
        (
            torch.randn(batch, 2, 3, 3) + torch.tensor([0.0, mean]).view(1, 2, 1, 1),
            torch.zeros(batch),
        )
        for _ in range(steps)
    )
    model = nn.Sequential(nn.Conv2d(2, 1, 3), nn.Flatten(0))
    return train(path, model, data, loss=nn.MSELoss(), include_collections=["inputs"])


def test_check_input_images(tmp_path: Path) -> None:
    torch.manual_seed(0)
    bad = images(tmp_path / "a", 1.0, 200, 3)
    rule = rules.CheckInputImages(bad)
    assert found_by(rule) == [(2, "Sequential_input_0")]  # the first with 500 images
    assert "in channel 1 over 600 images" in rule.findings[0].text
    assert found_by(rules.CheckInputImages(images(tmp_path / "b", 0.0, 250, 2))) == []


def test_nlp_sequence_ratio(tmp_path: Path) -> None:
    def run(path: Path, tokens: list[list[int]]) -> Any:
        model = nn.Sequential(nn.Embedding(5, 4), nn.Flatten(), nn.Linear(16, 3))
        data = ((torch.tensor([row]), torch.tensor([1])) for row in tokens)
        return train(path, model, data, include_collections=["embedding_input"])

    trial = run(tmp_path / "a", [[1, 2, 0, 0], [1, 0, 0, 0]])
    rule = rules.NLPSequenceRatio(trial)
    assert found_by(rule) == [(1, "0_input_0")]
    assert rule.findings[0].text == "has 75.0 % tokens 0"
    two = rules.NLPSequenceRatio(trial, token_values="0,1", token_thresholds_percent="80,20")
    assert found_by(two) == [(0, "0_input_0"), (1, "0_input_0")]


class Own(Rule):
    def invoke_at_step(self, step: int) -> bool:
        if step == 3:
            raise StepUnavailable("none", step=step, mode=ModeKeys.GLOBAL)
        return step in (2, 4)


def test_a_rule_of_ones_own_runs_to_the_end_or_to_what_it_looks_for(tmp_path: Path) -> None:
    trial = healthy(tmp_path)
    invoke_rule(Own(trial), end_step=6)
    with pytest.raises(RuleEvaluationConditionMet) as met:
        invoke_rule(Own(trial), start_step=3, raise_eval_cond=True)
    assert (met.value.rule_name, met.value.step) == ("Own", 4)
    assert isinstance(met.value, farandole.Error)
    rule = rules.VanishingGradient(healthy(tmp_path / "g", include_collections=["gradients"]), 1e9)
    found_by(rule)
    assert (rule.report["RuleTriggered"], rule.report["Violations"]) == (12, 48)
