# SPDX-License-Identifier: Apache-2.0
"""Trainings as Horovod's and SMDDP's examples have them: two ranks beside one plain process."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch
from farandole.migrate.check import check
from farandole_compat import finder
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset
from torch.utils.data.distributed import DistributedSampler

import run_command

EXAMPLES = Path(__file__).parents[2] / "examples"
HOROVOD, SAGEMAKER = EXAMPLES / "horovod", EXAMPLES / "sagemaker"
SCRIPTS = [
    *(HOROVOD / name for name in ("mnist.py", "imagenet.py", "synthetic_benchmark.py")),
    *(SAGEMAKER / name for name in ("smddp_mnist_v2.py", "smddp_distillation.py")),
]


def numbers(script: Path, ranks: int, *arguments: str, line: str = "epoch") -> list[list[float]]:
    """Those in each line of rank 0 that begins so."""
    done = run_command.run("-n", str(ranks), script, *arguments)
    assert done.returncode == 0, done.stderr[-3000:]
    found = [
        [float(number) for number in re.findall(r"\d+\.\d+", text)]
        for text in done.stdout.splitlines()
        if text.startswith(f"[0] {line}")
    ]
    assert found, done.stdout
    return found


def example(name: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Its models and data, without its training."""
    finder.install()
    monkeypatch.syspath_prepend(str(HOROVOD))
    monkeypatch.delitem(sys.modules, name, raising=False)
    return importlib.import_module(name)


def batches(data: Dataset[tuple[Tensor, ...]], size: int, epoch: int) -> DataLoader[tuple[Tensor]]:
    """Of all ranks together, in the order that their samplers choose."""
    sampler = DistributedSampler(data, num_replicas=1, rank=0)
    sampler.set_epoch(epoch)
    return DataLoader(data, batch_size=size, sampler=sampler)


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.name)
def test_they_import_nothing_of_farandole(script: Path) -> None:
    assert "farandole" not in re.sub(r'""".*?"""', "", script.read_text(), flags=re.DOTALL)
    assert all(each.answer.is_good for each in check([script]))


@pytest.mark.system
def test_mnist_of_horovod(monkeypatch: pytest.MonkeyPatch) -> None:
    mnist = example("mnist", monkeypatch)
    torch.manual_seed(42)
    model = mnist.Net(dropout=0.0)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, momentum=0.5)
    for data, target in batches(mnist.digits(640, seed=5), 64, epoch=1):
        optimizer.zero_grad()
        nn.functional.nll_loss(model(data), target).backward()
        optimizer.step()
    tests, labels = mnist.digits(200, seed=6).tensors
    with torch.no_grad():
        wanted = nn.functional.nll_loss(model.eval()(tests), labels).item()

    options = ("--lr", "0.1", "--batch-size", "32", "--epochs", "4")
    epochs = numbers(HOROVOD / "mnist.py", 2, *options, "--gradient-predivide-factor", "2")
    assert epochs[0][0] == pytest.approx(wanted, abs=2e-3)
    assert epochs[-1][1] > 80  # percent of the digits


@pytest.mark.system
def test_mnist_of_horovod_with_adasum_and_in_float16() -> None:
    options = ("--epochs", "4", "--lr", "0.2", "--use-adasum", "--fp16-allreduce")
    epochs = numbers(HOROVOD / "mnist.py", 2, *options)
    assert epochs[-1][1] > 80


@pytest.mark.system
def test_imagenet_of_horovod_goes_on_from_its_checkpoint(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    imagenet = example("imagenet", monkeypatch)
    torch.manual_seed(42)
    model = imagenet.ResNet()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-5)
    wanted = []
    for epoch in range(2):
        total = 0.0
        loader = batches(imagenet.images(256, seed=7), 32, epoch)
        for number, (data, target) in enumerate(loader):
            progress = epoch + (number + 1) / len(loader)
            for group in optimizer.param_groups:  # two ranks with two batches each: 4 * 0.02
                group["lr"] = 0.08 * ((progress + 1) / 2 if epoch < 1 else 1.0)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(model(data), target)
            loss.backward()
            optimizer.step()
            total += loss.item() / len(loader)
        wanted.append(total)

    place = str(tmp_path / "ckpt-{epoch}.pt")
    options = ("--batch-size", "8", "--batches-per-allreduce", "2", "--checkpoint-format", place)
    first = numbers(HOROVOD / "imagenet.py", 2, *options, "--epochs", "1")
    (second,) = numbers(HOROVOD / "imagenet.py", 2, *options, "--epochs", "2")
    assert first[0][0] == pytest.approx(wanted[0], abs=2e-3)
    assert second[0] == pytest.approx(wanted[1], abs=1e-2)
    assert (tmp_path / "ckpt-2.pt").exists()


@pytest.mark.system
def test_the_synthetic_benchmark_of_horovod() -> None:
    script = HOROVOD / "synthetic_benchmark.py"
    options = ("--num-iters", "2", "--num-batches-per-iter", "2")
    done = run_command.run("-n", "2", script, *options)
    assert done.returncode == 0, done.stderr[-3000:]
    rates = re.findall(r"images/s of 2 ranks: ([\d.]+)", done.stdout)
    assert len(rates) == 1
    assert float(rates[0]) > 0
    assert len(re.findall(r"iteration \d: [\d.]+ images/s", done.stdout)) == 2


@pytest.mark.system
@pytest.mark.parametrize(
    ("script", "arguments", "line"),
    [
        ("smddp_mnist_v2.py", ("--epochs", "2"), "epoch"),
        ("smddp_distillation.py", ("--epochs", "2"), "student"),
    ],
)
def test_scripts_of_smddp(script: str, arguments: tuple[str, ...], line: str) -> None:
    alone, together = (
        numbers(SAGEMAKER / script, ranks, *arguments, line=line) for ranks in (1, 2)
    )
    for ours, wanted in zip(together, alone, strict=True):
        assert ours == pytest.approx(wanted, abs=3e-3)
