# SPDX-License-Identifier: Apache-2.0
"""farandole.DistributedDataParallel as a module: state, copies, buffers, semi-public methods."""

from __future__ import annotations

import copy
import io
import pickle
from typing import Any

import pytest
import torch
import torch.distributed as dist
from farandole import DistributedDataParallel, InvalidArgument
from torch import Tensor, nn
from torch.distributed.checkpoint.state_dict import get_model_state_dict
from torch.nn.parallel import DistributedDataParallel as TorchDDP
from torch.nn.parallel.distributed import _BufferCommHookLocation, _MixedPrecision
from torch.nn.utils import prune

import ranks
import sim
from ddp_models import Convolutional, Experts, Frozen, Layers
from ddp_oracle import (
    assert_alike,
    assert_gradients,
    batch,
    check_steps,
    expected,
    gradients,
    seeded,
)


def square(output: Tensor) -> Tensor:
    return output.square().mean()


def plain_loss(model: nn.Module, rank: int, step: int) -> Tensor:
    return square(model(batch(rank, step, 4, 8)))


def wrapped(**options: Any) -> DistributedDataParallel:
    return DistributedDataParallel(seeded(Layers), **options)


def state_is_as_torchs() -> None:
    model = seeded(Convolutional)
    ddp, other = DistributedDataParallel(model), TorchDDP(copy.deepcopy(model))
    assert list(ddp.state_dict()) == list(other.state_dict())
    assert all(map(torch.equal, ddp.state_dict().values(), other.state_dict().values()))
    ddp.load_state_dict(other.state_dict())
    other.load_state_dict(ddp.state_dict())
    assert isinstance(ddp, TorchDDP)
    assert list(get_model_state_dict(ddp)) == list(model.state_dict())  # without "module."
    with pytest.raises(AttributeError):
        ddp.head  # noqa: B018 - as torch: not passed on to the module
    assert ddp.train() is ddp
    assert ddp.eval().training is ddp.module.training is False
    assert next(name for name, _ in ddp.named_parameters()) == "module.body.0.weight"
    for name in (
        "device_ids", "output_device", "process_group", "require_backward_grad_sync", "dim",
        "find_unused_parameters", "static_graph", "broadcast_buffers", "bucket_bytes_cap",
        "device", "device_type", "is_multi_device_module", "parameters_to_ignore",
        "require_forward_param_sync", "mixed_precision", "bucket_bytes_cap_default",
        "modules_buffers", "named_module_buffers", "gradient_as_bucket_view",
    ):  # fmt: skip
        assert type(getattr(ddp, name)) is type(getattr(other, name)), name
    ddp.forward_sync_buffers = False
    assert not ddp.broadcast_buffers
    for name in dir(TorchDDP):  # all public methods are here
        assert name.startswith("_") or hasattr(ddp, name), name


def other_parameter_objects() -> None:
    """load_state_dict(assign=True) puts other objects into the module."""
    ddp = wrapped()
    check_steps(ddp, plain_loss, steps=2)
    new = {name: tensor * 0.5 for name, tensor in ddp.state_dict().items()}
    before = list(ddp.parameters())
    ddp.load_state_dict(new, assign=True)
    assert all(a is not b for a, b in zip(before, ddp.parameters(), strict=True))
    check_steps(ddp, plain_loss)


def renamed_parameters() -> None:
    """torch.nn.utils.prune keeps the Parameter objects, by other names and in another order."""
    ddp, rank, world_size = wrapped(), dist.get_rank(), dist.get_world_size()
    alone = copy.deepcopy(ddp.module)
    linear = next(name for name, each in alone.named_modules() if isinstance(each, nn.Linear))
    for step in range(6):
        if step in (2, 5):
            for model in (alone, ddp.module):
                mask = torch.arange(model.get_submodule(linear).weight.numel()) % (step + 1) != 0
                layer: Any = model.get_submodule(linear)
                prune.custom_from_mask(layer, "weight", mask.view_as(layer.weight))
        if step == 4:
            for model in (alone, ddp.module):
                state = {name: 0.5 * tensor for name, tensor in model.state_dict().items()}
                model.load_state_dict(state, assign=True)
        ddp.zero_grad()
        alone.zero_grad()
        plain_loss(ddp, rank, step).backward()
        for each in range(world_size):
            (plain_loss(alone, each, step) / world_size).backward()
        assert_gradients(ddp, gradients(alone))


def copies() -> None:
    ddp = wrapped(find_unused_parameters=True)
    check_steps(ddp, plain_loss, steps=2)
    file = io.BytesIO()
    torch.save(ddp, file)
    file.seek(0)
    for other in (
        copy.deepcopy(ddp),
        pickle.loads(pickle.dumps(ddp)),
        torch.load(file, weights_only=False),
    ):
        assert other.find_unused_parameters
        assert all(map(torch.equal, other.state_dict().values(), ddp.state_dict().values()))
        check_steps(other, plain_loss)
    check_steps(ddp, plain_loss)
    if dist.get_rank() == 0:  # local
        pickle.loads(pickle.dumps(ddp))
    group = dist.new_group()
    other = DistributedDataParallel(Layers(), process_group=group)
    with pytest.raises(RuntimeError, match="default group"):
        copy.deepcopy(other)


def shared_memory() -> None:
    ddp = wrapped()
    check_steps(ddp, plain_loss, steps=2)
    ddp.module.share_memory()
    assert all(parameter.is_shared() for parameter in ddp.parameters())
    check_steps(ddp, plain_loss)


def functional_calls() -> None:
    def same(model: nn.Module, rank: int, step: int) -> Tensor:
        x = batch(rank, step, 4, 8)
        return square(torch.func.functional_call(model, dict(model.named_parameters()), (x,)))

    def doubled(model: nn.Module, rank: int, step: int) -> Tensor:
        x = batch(rank, step, 4, 8)
        tensors = {name: 2 * parameter for name, parameter in model.named_parameters()}
        return square(torch.func.functional_call(model, tensors, (x,)))

    ddp = wrapped()
    for loss in (same, doubled, plain_loss):
        check_steps(ddp, loss)
    values = {name: p.detach().clone() for name, p in ddp.named_parameters()}
    with torch.no_grad():
        torch.func.functional_call(ddp, values, (batch(0, 0, 4, 8),))
    check_steps(ddp, plain_loss)


def ignored_parameters() -> None:
    model = seeded(Layers)
    DistributedDataParallel._set_params_and_buffers_to_ignore_for_model(model, ["2.weight"])
    if dist.get_rank() == 1:
        nn.init.constant_(model[2].weight, 3)
    ddp = DistributedDataParallel(model)
    assert ddp.parameters_to_ignore == {"2.weight"}
    assert len(list(DistributedDataParallel._get_data_parallel_params(model))) == 5
    assert bool((model[2].weight == 3).all()) == (dist.get_rank() == 1)
    plain_loss(ddp, dist.get_rank(), 0).backward()
    gradient = model[2].weight.grad
    everyone = [torch.empty_like(gradient) for _ in range(dist.get_world_size())]
    dist.all_gather(everyone, gradient)
    assert not torch.equal(everyone[0], everyone[1])
    assert_alike(model[0].weight.grad)


def delayed_reduction() -> None:
    for every in (False, True):
        model = seeded(Layers)
        delayed = [
            (name, parameter)
            for name, parameter in model.named_parameters()
            if every or name.startswith("2.")
        ]
        ddp = DistributedDataParallel(
            model, delay_all_reduce_named_params=delayed, param_to_hook_all_reduce=model[0].bias
        )
        if every:  # the last gradient to come is the one that is hooked
            order = [p for p in model.parameters() if p is not model[0].bias]
            for parameter in order:
                assert parameter.requires_grad
        world_size = dist.get_world_size()
        for step in range(3):
            wanted = expected(model, world_size, plain_loss, step)
            ddp.zero_grad()
            plain_loss(ddp, dist.get_rank(), step).backward()
            found = {name: parameter.grad for name, parameter in model.named_parameters()}
            for name in wanted if not every else ["2.weight", "2.bias", "4.weight", "4.bias"]:
                torch.testing.assert_close(found[name], wanted[name], rtol=1e-9, atol=1e-12)
        pickle.loads(pickle.dumps(ddp))


def mixed_precision() -> None:
    class Sees(Layers):
        def forward(self, x: Tensor) -> Tensor:
            self.dtype = (x.dtype, self[0].weight.dtype)
            return super().forward(x)

    for config in (
        _MixedPrecision(torch.bfloat16, torch.bfloat16, torch.bfloat16),
        _MixedPrecision(param_dtype=torch.bfloat16, reduce_dtype=torch.float32),
        _MixedPrecision(reduce_dtype=torch.float16),
    ):
        torch.manual_seed(0)
        model = Sees()
        ddp = DistributedDataParallel(model, mixed_precision=config)
        for step in range(3):
            ddp.zero_grad()
            x = batch(dist.get_rank(), step, 4, 8).float()
            square(ddp(x)).backward()
            dtype = config.param_dtype or torch.float32
            assert model.dtype == (dtype, dtype)
            for name, parameter in model.named_parameters():
                assert parameter.dtype == torch.float32
                assert parameter.grad is not None
                assert parameter.grad.dtype == torch.float32
                assert_alike(parameter.grad, name)
            wanted = expected(model.double(), 2, lambda m, r, s: square(m(batch(r, s, 4, 8))), step)
            model.float()
            for name, parameter in model.named_parameters():
                gradient = wanted[name]
                assert gradient is not None
                difference = (parameter.grad - gradient).abs().max()  # type: ignore[operator]
                assert difference <= 0.1 * gradient.abs().max(), name


def buffers() -> None:
    for options, alike in (
        ({}, True),
        ({"broadcast_buffers": True}, True),
        ({"broadcast_buffers": False}, False),
        ({"forward_sync_buffers": False}, False),
    ):
        model = seeded(Convolutional)
        if dist.get_rank() == 1:
            nn.init.constant_(model.body[1].running_mean, 7)
        ddp = DistributedDataParallel(model, **options)
        starts_alike = options.get("broadcast_buffers") is not False
        assert bool((model.body[1].running_mean == 7).any()) == (
            dist.get_rank() == 1 and not starts_alike
        )
        assert ddp.will_sync_module_buffers() == alike
        square(ddp(batch(dist.get_rank(), 0, 4, 192))).backward()
        ddp.eval()
        with torch.no_grad():
            ddp(batch(0, 0, 4, 192))
        mean = model.body[1].running_mean
        everyone = [torch.empty_like(mean) for _ in range(dist.get_world_size())]
        dist.all_gather(everyone, mean)
        assert torch.equal(everyone[0], everyone[1]) == alike
        assert not ddp.will_sync_module_buffers()  # as torch: not again before a training pass
    ddp = DistributedDataParallel(seeded(Frozen))
    for step in range(4):  # a forward puts another tensor into its place
        square(ddp(batch(dist.get_rank(), step, 4, 8))[0]).backward()
    assert ddp.stats().backward == 4
    assert float(ddp.module.calls) == 4


class Counting(Layers):
    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("seen", torch.zeros(2))
        self.register_buffer("batches", torch.zeros((), dtype=torch.long))

    def forward(self, x: Tensor) -> Tensor:
        self.seen.add_(x.detach().mean())
        self.batches.add_(1)
        return super().forward(x)


def buffer_hooks() -> None:
    def average(state: object, named: dict[str, Tensor]) -> list[torch.futures.Future[Any]]:
        names.update(named)
        works = []
        for buffer in named.values():
            if buffer.is_floating_point():
                buffer.div_(dist.get_world_size())
                works.append(dist.all_reduce(buffer, async_op=True).get_future())
        return works

    for location in (_BufferCommHookLocation.POST_FORWARD, _BufferCommHookLocation.PRE_FORWARD):
        names: set[str] = set()
        ddp = DistributedDataParallel(seeded(Counting))
        ddp._register_buffer_comm_hook(None, average, location)
        for step in range(3):
            plain_loss(ddp, dist.get_rank(), step).backward()
        seen = ddp.module.seen
        if location == _BufferCommHookLocation.PRE_FORWARD:  # the last batches are still apart
            everyone = [torch.empty_like(seen) for _ in range(dist.get_world_size())]
            dist.all_gather(everyone, seen)
            assert not torch.equal(everyone[0], everyone[1])
            seen = sum(everyone, torch.zeros(2)) / dist.get_world_size()
        mean = [batch(r, s, 4, 8).mean() for r in range(dist.get_world_size()) for s in range(3)]
        wanted = torch.stack(mean).sum().expand(2) / dist.get_world_size()
        torch.testing.assert_close(seen, wanted, rtol=1e-9, atol=1e-12)
        assert names == {"seen", "batches"}
    with pytest.raises(TypeError):
        ddp._register_buffer_comm_hook(None, 3)  # type: ignore[arg-type]


def backward_that_is_prepared_by_hand() -> None:
    """As Lightning does in manual optimization."""
    ddp = wrapped()
    for step in range(3):
        wanted = expected(ddp.module, dist.get_world_size(), plain_loss, step)
        ddp.zero_grad()
        ddp.require_backward_grad_sync = False
        loss = plain_loss(ddp, dist.get_rank(), step)
        ddp.require_backward_grad_sync = True
        ddp.reducer._rebuild_buckets()
        ddp.reducer.prepare_for_backward([loss])
        loss.backward()
        assert_gradients(ddp, wanted)


def backward_that_is_finalized_by_hand() -> None:
    """As torch 2.15's programs may do it; with an older torch they can too."""
    ddp = wrapped()
    with pytest.raises(InvalidArgument, match="nothing to finalize"):
        ddp.finalize_backward()
    ddp.require_manual_backward_finalization = True
    for step in range(3):
        wanted = expected(ddp.module, dist.get_world_size(), plain_loss, step)
        ddp.zero_grad()
        loss = plain_loss(ddp, dist.get_rank(), step)
        assert ddp.should_finalize_after_backward
        loss.backward()
        ddp.finalize_backward()
        assert_gradients(ddp, wanted)
    loss = plain_loss(ddp, dist.get_rank(), 0)
    errors: list[InvalidArgument] = []

    def finalize_too_early(_: Tensor) -> None:
        with pytest.raises(InvalidArgument, match="during backward") as error:
            ddp.finalize_backward()
        errors.append(error.value)

    loss.register_hook(finalize_too_early)
    loss.backward()
    assert errors


def semi_public_methods() -> None:
    ddp = wrapped(bucket_cap_mb=0.0005)
    assert str(ddp.stats()) == "no synchronized backward yet"
    assert ddp._get_ddp_logging_data()["iteration"] == 0
    check_steps(ddp, plain_loss)
    stats = ddp.stats()
    assert stats.backward == 3
    assert len(stats.buckets) > 1
    assert stats.compute_ms >= 0
    assert stats.exposed_ms >= 0
    assert stats.latest_rank in range(dist.get_world_size())
    assert len(stats.rank_compute_ms) == dist.get_world_size()
    assert "exposed communication" in str(stats)
    assert "bucket 1:" in str(stats)
    data = ddp._get_ddp_logging_data()
    assert data["world_size"] == dist.get_world_size()
    assert data["rank"] == dist.get_rank()
    assert data["module_name"] == "Layers"
    assert data["iteration"] == 3
    assert data["num_buckets_reduced"] == len(stats.buckets)
    assert isinstance(data["backward_compute_time"], int)
    torchs = TorchDDP(Layers())._get_ddp_logging_data()
    same = {
        "world_size", "rank", "module_name", "device_ids", "output_device", "broadcast_buffers",
        "bucket_cap_bytes", "find_unused_parameters", "gradient_as_bucket_view", "backend_name",
        "iteration", "dtypes", "has_sync_bn", "num_parameter_tensors",
        "total_parameter_size_bytes", "is_multi_device_module",
    }  # fmt: skip
    assert same <= data.keys()
    assert same <= torchs.keys(), same - torchs.keys()
    ddp._set_ddp_runtime_logging_sample_rate(5)
    with pytest.raises(ValueError, match="at least 1"):
        ddp._set_ddp_runtime_logging_sample_rate(0)
    ddp._check_reducer_finalized()
    ddp._set_ddp_sink_clone(False)
    ddp._set_static_graph()
    assert ddp.static_graph
    check_steps(ddp, plain_loss)
    with pytest.warns(UserWarning, match="already"):
        ddp._set_static_graph()
    ddp._remove_autograd_hooks()
    own = expected(ddp.module, 1, lambda m, r, s: plain_loss(m, dist.get_rank(), s), 0)
    ddp.zero_grad()
    plain_loss(ddp, dist.get_rank(), 0).backward()
    for name, parameter in ddp.module.named_parameters():
        torch.testing.assert_close(parameter.grad, own[name])


def other_groups() -> None:
    ddp = wrapped()
    check_steps(ddp, plain_loss, steps=2)
    group = dist.new_group()
    ddp.set_process_group(group)
    assert ddp.process_group is group
    check_steps(ddp, plain_loss)
    alone = [dist.new_group([rank]) for rank in range(dist.get_world_size())]
    mine = alone[dist.get_rank()]
    ddp._update_process_group(alone[dist.get_rank() - 1])  # not of this rank: nothing
    assert ddp.process_group is group
    ddp._update_process_group(mine)
    own = expected(ddp.module, 1, lambda m, r, s: plain_loss(m, dist.get_rank(), s), 0)
    ddp.zero_grad()
    plain_loss(ddp, dist.get_rank(), 0).backward()
    for name, parameter in ddp.module.named_parameters():
        torch.testing.assert_close(parameter.grad, own[name])
    mesh = dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(),))
    check_steps(wrapped(device_mesh=mesh), plain_loss)
    with pytest.raises(InvalidArgument, match="2 dimensions"):
        wrapped(device_mesh=dist.device_mesh.init_device_mesh("cpu", (dist.get_world_size(), 1)))


def without_initial_sync() -> None:
    model = seeded(Layers)
    if dist.get_rank() == 1:
        nn.init.zeros_(model[0].weight)
    DistributedDataParallel(model, init_sync=False)
    assert bool((model[0].weight == 0).all()) == (dist.get_rank() == 1)


def unused_and_static() -> None:
    """A static graph knows the unused from the first backward."""
    ddp = DistributedDataParallel(seeded(Experts), static_graph=True)
    check_steps(ddp, lambda m, r, s: square(m(batch(r, s, 4, 8), 2).mixed))
    assert ddp.module.experts[0].weight.grad is None


CHECKS = [
    state_is_as_torchs,
    other_parameter_objects,
    renamed_parameters,
    copies,
    shared_memory,
    functional_calls,
    ignored_parameters,
    delayed_reduction,
    mixed_precision,
    buffers,
    buffer_hooks,
    backward_that_is_prepared_by_hand,
    backward_that_is_finalized_by_hand,
    semi_public_methods,
    other_groups,
    without_initial_sync,
    unused_and_static,
]


# There forked processes share no memory, and BatchNorm1d.eval() does not run.
NOT_SIMULATED = [shared_memory, buffers]


def run_checks(rank: int, world_size: int) -> None:
    for check in CHECKS:
        if check in NOT_SIMULATED and ranks.on_simulated_device():
            continue
        check()


@pytest.mark.parametrize("backend", ["farandole", "hosts", "gloo", *sim.backends("slow_default")])
def test_the_module(backend: str) -> None:
    ranks.run(run_checks, 2, setup=ranks.Setup(backend=backend))


def compiled(rank: int, world_size: int) -> None:
    outer = wrapped()
    check = torch.compile(outer, backend="eager")
    for step in range(3):
        wanted = expected(outer.module, world_size, plain_loss, step)
        outer.zero_grad()
        plain_loss(check, rank, step).backward()
        assert_gradients(outer, wanted)
    model = seeded(Layers)
    inner = DistributedDataParallel(torch.compile(model, backend="eager"))
    for step in range(3):
        wanted = expected(model, world_size, plain_loss, step)
        inner.zero_grad()
        plain_loss(inner, rank, step).backward()
        assert_gradients(inner, wanted)


def test_compiled_modules() -> None:
    ranks.run(compiled, 2, deadline_s=100)
