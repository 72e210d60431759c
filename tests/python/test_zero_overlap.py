# SPDX-License-Identifier: Apache-2.0
"""Forwards that begin while new parameters come from other ranks."""

from __future__ import annotations

import copy
import io
import logging
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import farandole
import pytest
import torch
from farandole.optim.arrival import Arrival, Hook
from torch import Tensor, nn
from torch.nn.functional import linear
from torch.nn.parallel.distributed import _MixedPrecision
from torch.utils._python_dispatch import _get_current_dispatch_mode_stack

import ranks


class Sender:
    """Stands in for the engine: parameters are NaN until somebody waits for them."""

    def __init__(self, model: nn.Module) -> None:
        self.parameters = list(model.parameters())
        self.values: dict[Tensor, Tensor] = {}
        self.waits = 0

    def send(self) -> None:
        with torch.no_grad():
            for p in self.parameters:
                self.values[p] = p.detach().clone()
                p.fill_(torch.nan)

    @property
    def is_sending(self) -> bool:
        return bool(self.values)

    def wait_for(self, parameters: Sequence[Tensor]) -> None:
        self.waits += 1
        with torch.no_grad():
            for p in parameters:
                if p in self.values:
                    p.copy_(self.values.pop(p))

    def wait(self) -> None:
        self.wait_for(self.parameters)


class Block(nn.Module):
    """Reads the weights of a child itself, as nn.MultiheadAttention does."""

    def __init__(self) -> None:
        super().__init__()
        self.attention = nn.MultiheadAttention(8, 2, batch_first=True)
        self.out = nn.Linear(8, 8)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.attention(x, x, x, need_weights=False)[0]
        return x + linear(x, self.out.weight, self.out.bias)


class Model(nn.Module):
    """Tied weights, parameters of its own and in lists, and a layer that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(16, 8)
        self.shift = nn.Parameter(torch.randn(8))
        self.scales = nn.ParameterList([torch.randn(8), torch.randn(8)])
        self.blocks = nn.ModuleList([Block(), Block()])
        self.tail = nn.Sequential(nn.Linear(8, 8), nn.Tanh(), nn.Linear(8, 8))
        self.uncalled = nn.Linear(8, 8, bias=False)
        self.head = nn.Linear(8, 16, bias=False)
        self.head.weight = self.embedding.weight

    def forward(self, tokens: Tensor) -> Tensor:
        x = self.embedding(tokens) + self.shift
        for block, scale in zip(self.blocks, self.scales, strict=True):
            x = block(x * scale)
        return self.head(linear(self.tail(x), self.uncalled.weight))


def make_lstm() -> nn.Module:
    class Lstm(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.lstm = nn.LSTM(8, 8, batch_first=True)
            self.norm = nn.utils.parametrizations.weight_norm(nn.Linear(8, 8))

        def forward(self, x: Tensor) -> Tensor:
            return self.norm(self.lstm(x)[0])

    return Lstm()


class Early(nn.Module):
    """Reads the weight of a layer before that layer runs, as autoencoders with tied weights do."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 4), nn.Linear(4, 8), nn.Linear(8, 8)])

    def forward(self, x: Tensor) -> Tensor:
        first, tied, last = self.layers
        x = first(x) + torch.cat([linear(x, tied.weight.t())])
        return last(tied(x))


class Recursive(nn.Module):
    """Calls itself, asks a parameter for its dtype first, and has a compiled function inside."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([nn.Linear(8, 8), nn.Linear(8, 8)])
        self.activation = torch.compile(torch.relu, backend="eager", fullgraph=True)

    def forward(self, x: Tensor, depth: int = 1) -> Tensor:
        x = x.to(self.layers[1].weight.dtype)
        if depth:
            x = self(x, depth - 1)
        for layer in self.layers:
            x = self.activation(layer(x))
        return x


MODELS: dict[str, tuple[Callable[[], nn.Module], Callable[[], Tensor]]] = {
    "tied": (Model, lambda: torch.arange(10).reshape(2, 5)),
    "lstm": (make_lstm, lambda: torch.ones(2, 3, 8)),
    "recursive": (Recursive, lambda: torch.ones(2, 8)),
    "early": (Early, lambda: torch.ones(2, 8)),
    "leaf": (lambda: nn.Linear(4, 4), lambda: torch.ones(2, 4)),
    "nested": (
        lambda: nn.Sequential(nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 4)), nn.Linear(4, 2)),
        lambda: torch.ones(2, 4),
    ),
    "transformer": (
        lambda: nn.TransformerEncoder(
            nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 2
        ),
        lambda: torch.ones(2, 3, 8),
    ),
}


@pytest.mark.parametrize("name", MODELS)
def test_no_parameter_is_read_before_it_has_arrived(name: str) -> None:
    torch.manual_seed(0)
    make, batch = MODELS[name]
    model = make()
    expected = copy.deepcopy(model)
    sender = Sender(model)
    arrival = Arrival(model, sender)  # type: ignore[arg-type]
    for step in range(4):
        if step > 0:  # the first step has not been sent yet
            sender.send()
        loss = model(batch()).square().sum()
        assert loss.item() == expected(batch()).square().sum().item()
        loss.backward()
        arrival.note_gradients()
        model.zero_grad()
        sender.wait()
    sender.send()
    with torch.no_grad():
        assert not model.eval()(batch()).isnan().any()
    sender.wait()
    sender.send()
    assert not any(value.isnan().any() for value in model.state_dict().values())


def test_forwards_that_end_early_are_forgotten() -> None:
    model = Recursive()
    arrival = Arrival(model, Sender(model))  # type: ignore[arg-type]
    batch = torch.ones(2, 8)
    interrupt = model.layers[1].register_forward_hook(_interrupt)
    with pytest.raises(KeyboardInterrupt):
        model(batch)
    interrupt.remove()
    arrival.note_gradients()
    assert not _get_current_dispatch_mode_stack()
    model(batch).sum().backward()
    assert not _get_current_dispatch_mode_stack()
    arrival.note_gradients()
    assert all(unit.is_trusted for unit in arrival._units)


def _interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_the_first_blocks_run_before_the_last_parameters_have_come() -> None:
    model = Model()
    sender = Sender(model)
    arrival = Arrival(model, sender)  # type: ignore[arg-type]
    batch = torch.arange(10).reshape(2, 5)
    model(batch).sum().backward()
    arrival.note_gradients()
    seen: list[bool] = []
    model.blocks[0].register_forward_hook(
        lambda *_: seen.append(bool(model.tail[2].weight.isnan().any()))
    )
    sender.send()
    model(batch)
    assert seen == [True]


def test_a_module_that_is_passed_by_is_told_and_waited_for(
    caplog: pytest.LogCaptureFixture,
) -> None:
    class Fickle(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.layers = nn.ModuleList([nn.Linear(3, 3), nn.Linear(3, 3)])
            self.calls = True

        def forward(self, x: Tensor) -> Tensor:
            x = self.layers[0](x)
            return self.layers[1](x) if self.calls else linear(x, self.layers[1].weight)

    model = Fickle()
    sender = Sender(model)
    arrival = Arrival(model, sender)  # type: ignore[arg-type]

    def step() -> Tensor:
        loss = model(torch.ones(1, 3)).sum()
        loss.backward()
        arrival.note_gradients()
        return loss

    step()
    model.calls = False
    logging.getLogger("farandole").propagate = True
    with caplog.at_level(logging.WARNING, logger="farandole"):
        step()
    assert "parameters of a Linear got gradients though its forward was not called" in caplog.text
    sender.send()
    assert not step().isnan()


class Autoencoder(nn.Module):
    """Has no list of blocks; its encoder has, and reads a weight past its module."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder = Model()
        self.decoder = Block()
        self.head = nn.Linear(8, 1)

    def forward(self, tokens: Tensor) -> Tensor:
        return self.head(self.decoder(linear(self.encoder(tokens), self.encoder.head.weight.t())))


@pytest.mark.parametrize("has_stepped", [False, True])
def test_parts_of_the_model_may_be_called_alone(has_stepped: bool) -> None:
    model = Autoencoder()
    expected = copy.deepcopy(model)
    sender = Sender(model)
    arrival = Arrival(model, sender)  # type: ignore[arg-type]
    batch = torch.arange(10).reshape(2, 5)
    if has_stepped:
        model(batch).sum().backward()
        arrival.note_gradients()
    x = torch.ones(2, 3, 8)
    for name, argument in (
        ("encoder", batch),
        ("encoder.tail", x),
        ("encoder.tail.2", x),
        ("encoder.blocks.1", x),
        ("encoder.blocks.1.out", x),
        ("decoder", x),
        ("decoder.out", x),
        ("head", x),
    ):
        sender.send()
        part, same = model.get_submodule(name), expected.get_submodule(name)
        assert torch.equal(part(argument), same(argument)), name
        sender.wait()


def test_parts_of_the_model_may_be_saved_and_loaded() -> None:
    model = Autoencoder()
    sender = Sender(model)
    Arrival(model, sender)  # type: ignore[arg-type]
    for name in ("", "encoder", "encoder.blocks", "decoder.out", "head"):
        part = model.get_submodule(name)
        sender.send()
        saved = part.state_dict()
        assert not any(value.isnan().any() for value in saved.values()), name
        sender.wait()
        zeros = {key: torch.zeros_like(value) for key, value in saved.items()}
        sender.send()
        part.load_state_dict(zeros)
        sender.wait()
        assert all((value == 0).all() for value in part.state_dict().values()), name


def test_compiled_parts_are_waited_for_before_they_run() -> None:
    model = Autoencoder()
    model.decoder.compile(backend="eager")
    model.encoder.tail = torch.compile(model.encoder.tail, backend="eager")  # type: ignore[assignment]
    batch = torch.arange(10).reshape(2, 5)
    model(batch).sum().backward()  # compiled before there are hooks
    expected = model(batch)
    sender = Sender(model)
    arrival = Arrival(model, sender)  # type: ignore[arg-type]
    for _ in range(3):
        sender.send()
        assert torch.equal(model(batch), expected)
        model(batch).sum().backward()
        arrival.note_gradients()
        sender.wait()


def test_copies_of_the_model_have_no_part_in_it() -> None:
    model = Model()
    sender = Sender(model)
    Arrival(model, sender)  # type: ignore[arg-type]
    file = io.BytesIO()
    torch.save(model, file)
    file.seek(0)
    for other in (copy.deepcopy(model), torch.load(file, weights_only=False)):
        hooks = [h for m in other.modules() for h in m._forward_pre_hooks.values()]
        assert hooks
        assert all(isinstance(hook, Hook) for hook in hooks)
        sender.send()
        other(torch.arange(10).reshape(2, 5))
        assert sender.is_sending
        sender.wait()


def losses(rank: int, world_size: int, gradients: str, overlaps: bool) -> list[float]:
    torch.manual_seed(0)
    model = farandole.DistributedDataParallel(Model())
    optimizer = farandole.ZeroRedundancyOptimizer(
        model.parameters(),
        torch.optim.AdamW,
        lr=0.01,
        gradients=gradients,  # type: ignore[arg-type]
        overlap_with_ddp=overlaps,
    )
    generator = torch.Generator().manual_seed(rank)
    found = []
    for step in range(8):
        optimizer.zero_grad()
        tokens = torch.randint(16, (4, 5 + step % 2), generator=generator)
        logits = model(tokens)
        loss = nn.functional.cross_entropy(logits.flatten(0, 1), tokens.flatten())
        loss.backward()
        optimizer.clip_grad_norm_(1.0)
        optimizer.step()
        found.append(loss.item())
    found.append(sum(float(p.sum()) for p in model.state_dict().values()))
    saved: list[Any] = [None] * world_size
    farandole.all_gather_object(saved, found[-1])
    assert len(set(saved)) == 1
    return found


@pytest.mark.parametrize("gradients", ["full", "shard"])
@pytest.mark.parametrize("backend", ["hosts", "gloo"])
def test_losses_are_those_without(backend: str, gradients: str) -> None:
    with_and_without = [
        ranks.run(losses, 2, gradients, overlaps, setup=ranks.Setup(backend=backend))
        for overlaps in (True, False)
    ]
    assert with_and_without[0] == with_and_without[1]


def wide_losses(rank: int, _: int, kind: str, overlaps: bool) -> list[float]:
    torch.manual_seed(0)
    width = 700  # new values travel for longer than it takes to begin a forward
    net = nn.Sequential(nn.Linear(width, width), nn.Tanh(), nn.Linear(width, width))
    half = _MixedPrecision(param_dtype=torch.bfloat16) if kind == "mixed_precision" else None
    model = farandole.DistributedDataParallel(net, mixed_precision=half)
    call: Callable[[Tensor], Tensor] = model
    if kind == "compiled":
        call = torch.compile(model, backend="eager")
    if kind == "compiles_itself":
        net.compile(backend="eager")
    optimizer = farandole.ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.SGD, lr=0.05, overlap_with_ddp=overlaps
    )
    generator = torch.Generator().manual_seed(rank)
    found = []
    for _ in range(6):
        optimizer.zero_grad()
        loss = call(torch.randn(2, width, generator=generator)).square().mean()
        loss.backward()
        optimizer.step()
        found.append(loss.item())
        if kind == "copied":
            found.append(sum(float(p.sum()) for p in copy.deepcopy(model).parameters()))
        if kind == "threads":
            batches = [torch.randn(2, width, generator=generator) for _ in range(4)]
            with ThreadPoolExecutor(4) as threads:
                found += threads.map(lambda batch: net(batch).square().mean().item(), batches)
    return found


@pytest.mark.parametrize(
    "kind", ["compiled", "compiles_itself", "copied", "mixed_precision", "threads"]
)
def test_whoever_reads_parameters_waits(kind: str) -> None:
    with_and_without = [
        ranks.run(wide_losses, 2, kind, overlaps, setup=ranks.Setup(backend="hosts"))
        for overlaps in (True, False)
    ]
    assert with_and_without[0] == with_and_without[1]
