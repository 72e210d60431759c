# SPDX-License-Identifier: Apache-2.0
"""torch's DistributedDataParallel, by the same names, over farandole's replicas."""

from __future__ import annotations

import copy
import warnings
import weakref
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch._C._distributed_c10d import BuiltinCommHookType
from torch.autograd.profiler import record_function
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.distributed.utils import _to_kwargs
from torch.nn.parallel import DistributedDataParallel as TorchDistributedDataParallel
from torch.nn.parallel.scatter_gather import gather, scatter_kwargs

from farandole import _C, arguments
from farandole.called import collective
from farandole.ddp import comm_hooks, construction, joining, module_tensors
from farandole.ddp import mixed_precision as precision
from farandole.ddp.accumulation import Accumulation
from farandole.ddp.backward_times import BackwardTimes, backward_times
from farandole.ddp.buffer_hook import BufferCommHook, BufferCommHookLocation, BufferHook
from farandole.ddp.delayed_reduction import DelayedReduction
from farandole.ddp.logging_data import logging_data
from farandole.ddp.outputs import find_tensors
from farandole.ddp.reducer_interface import ReducerInterface
from farandole.ddp.sync_batch_norm import set_pass_weight
from farandole.errors import InvalidArgument, sentences

_DEFAULT_BUCKET_CAP_MB = 25.0
_wrappers: weakref.WeakSet[DistributedDataParallel] = weakref.WeakSet()


def wrapper_of(parameter: Tensor) -> DistributedDataParallel | None:
    """The DistributedDataParallel that has ``parameter``; None if there is none."""
    for wrapper in list(_wrappers):
        if any(each is parameter for each in wrapper.module.parameters()):
            return wrapper
    return None


class DistributedDataParallel(nn.Module, Joinable):
    """Average the gradients of ``module`` over the ranks of a group while backward runs.

    It is used as torch.nn.parallel.DistributedDataParallel is, and isinstance() takes it for one::

        model = farandole.DistributedDataParallel(model)
        model(x).sum().backward()  # gradients are averages now

    Gradients exist once: ``p.grad`` is a part of a bucket. Errors of the ranks arrive from
    ``backward()`` with their type, name rank and parameter, and leave the group usable.

    Args:
        module: The same on every rank; its state becomes rank 0's.
        device_ids: For a module on one accelerator, where inputs are moved to.
        output_device: Kept as torch does.
        dim: Of scatter() and gather().
        broadcast_buffers: Whether rank 0's buffers are sent, at the start and in each forward.
        init_sync: Whether modules are compared and rank 0's state is sent at the start.
        process_group: Of any backend; the default group if None.
        bucket_cap_mb: MiB of a bucket; if None what suits the group: 1 on shared memory, else 25.
        find_unused_parameters: Whether a missing gradient counts as zero instead of an error.
        check_reduction: Without effect.
        gradient_as_bucket_view: Without effect: gradients always are.
        static_graph: Whether every backward is like the first.
        delay_all_reduce_named_params: Names and parameters that stay outside of the buckets ...
        param_to_hook_all_reduce: ... and are averaged when this one has got its gradient.
        mixed_precision: dtypes of forward, reduction and buffers.
        device_mesh: One dimension of a mesh, in place of ``process_group``.
        skip_all_reduce_unused_params: With ``find_unused_parameters``, whether a bucket in which no
            parameter got a gradient is not averaged. All ranks must leave the same unused.
        bucket_cap_mb_list: MiB of the first buckets, one by one.
        batched_grad_copy: Without effect.
        forward_sync_buffers: As ``broadcast_buffers``, for forward alone.
        lazy_bucket_allocation: Without effect.
        report_nonfinite: What becomes of a backward in which a gradient has an Inf or NaN, on all
            ranks: "warn" writes a line that names rank, parameter and bucket; "skip" also leaves
            no parameter a gradient, so that steps change nothing; "raise" raises a BackwardError
            instead of the line; "off" does not look. If None, what FARANDOLE_CHECK_FINITE says.
        wire_dtype: torch.bfloat16 or torch.float16, or the name of one: what gradients of float32
            and float64 travel as; if None as they are. Those of half types travel as they are,
            or as torch.float32, which adds them up in it. Without effect where no gradient travels,
            which is in shared memory. In place of a communication hook and of
            ``mixed_precision``'s reduce_dtype.
        gradient_accumulation_steps: Every so many backward passes gradients are averaged; those in
            between stay local and add up, as within no_sync(). There is one backward to a forward.

    Raises:
        InvalidArgument: arguments or modules that cannot be; the text says why.
    """

    process_group: dist.ProcessGroup
    module: nn.Module
    gradient_as_bucket_view = True
    require_backward_grad_sync = True
    require_forward_param_sync = True
    require_manual_backward_finalization = False
    buffer_hook: BufferCommHook | None = None
    _loss_weight: float | None = None
    _runtime_logging_sample_rate = 100
    _ddp_sink_clone = True
    _looked_for_optimizers = False
    _passes_before_forward = -1  # the last one that was synchronized
    _warned_of_two_forwards = False
    _replica: _C.Replica | None = None

    @collective
    def __init__(
        self,
        module: nn.Module,
        device_ids: Sequence[int | torch.device] | None = None,
        output_device: int | torch.device | None = None,
        dim: int = 0,
        broadcast_buffers: bool | None = None,
        init_sync: bool = True,
        process_group: dist.ProcessGroup | None = None,
        bucket_cap_mb: float | None = None,
        find_unused_parameters: bool = False,
        check_reduction: bool = False,
        gradient_as_bucket_view: bool = False,
        static_graph: bool = False,
        delay_all_reduce_named_params: Iterable[tuple[str, nn.Parameter]] | None = None,
        param_to_hook_all_reduce: nn.Parameter | None = None,
        mixed_precision: precision.MixedPrecision | None = None,
        device_mesh: Any = None,
        skip_all_reduce_unused_params: bool = False,
        bucket_cap_mb_list: Sequence[float] | None = None,
        batched_grad_copy: bool = False,
        forward_sync_buffers: bool | None = None,
        lazy_bucket_allocation: bool = False,
        *,
        report_nonfinite: construction.NonfinitePolicy | None = None,
        wire_dtype: torch.dtype | str | None = None,
        gradient_accumulation_steps: int = 1,
    ) -> None:
        super().__init__()
        Joinable.__init__(self)
        construction.check_module(module)
        construction.warn_of_arguments_without_effect(
            check_reduction=check_reduction,
            gradient_as_bucket_view=gradient_as_bucket_view,
            batched_grad_copy=batched_grad_copy,
            lazy_bucket_allocation=lazy_bucket_allocation,
        )
        construction.check_pair(delay_all_reduce_named_params, param_to_hook_all_reduce)
        self.process_group = construction.choose_group(process_group, device_mesh)
        self.device_mesh = device_mesh
        self.module = module
        self.dim = dim
        self.find_unused_parameters = find_unused_parameters
        self.static_graph = static_graph
        self.skip_all_reduce_unused_params = skip_all_reduce_unused_params
        self._report_nonfinite = construction.check_policy(report_nonfinite)
        self._wire_dtype = construction.check_wire(wire_dtype, mixed_precision)
        self._accumulation = Accumulation(gradient_accumulation_steps)
        self.mixed_precision = mixed_precision
        self.broadcast_buffers = construction.forward_sync(broadcast_buffers, forward_sync_buffers)
        self._sends_buffers_at_start = broadcast_buffers is not False
        self._set_caps(bucket_cap_mb, bucket_cap_mb_list)
        self._choose_parameters(list(delay_all_reduce_named_params or ()), param_to_hook_all_reduce)
        self.device_ids, self.output_device = construction.check_devices(
            device_ids, output_device, self._module_parameters
        )
        self._comm_hooks: list[tuple[Callable[..., Any], object]] = []
        self._prepare_module()
        if self._averages_in_buckets:
            self._replica = self._make_replica(init_sync)
        _wrappers.add(self)

    def _set_caps(self, cap_mb: float | None, caps_mb: Sequence[float] | None) -> None:
        cap_mb, self._bucket_cap_mb_list = construction.check_caps(cap_mb, caps_mb)
        self._bucket_cap_mb = cap_mb
        largest = max(self._bucket_cap_mb_list, default=cap_mb or _DEFAULT_BUCKET_CAP_MB)
        self.bucket_bytes_cap = int(largest * 2**20)  # torch.compile() cuts graphs by it
        self.bucket_bytes_cap_default = cap_mb is None and not self._bucket_cap_mb_list
        self.bucket_bytes_cap_list = [int(cap * 2**20) for cap in self._bucket_cap_mb_list]

    def _choose_parameters(
        self, delayed: list[tuple[str, nn.Parameter]], trigger: nn.Parameter | None
    ) -> None:
        """Which parameters and buffers are averaged, and which are left alone."""
        ignored: Collection[str] = getattr(self.module, "_ddp_params_and_buffers_to_ignore", ())
        self.parameters_to_ignore = set(ignored) | {name for name, _ in delayed}
        self._delayed_and_trigger = (tuple(parameter for _, parameter in delayed), trigger)
        self._module_parameters = [
            parameter
            for name, parameter in self.module.named_parameters()
            if name not in self.parameters_to_ignore
        ]
        trained = any(parameter.requires_grad for parameter in self._module_parameters)
        self._averages_in_buckets = trained or not delayed
        parameters = [*self._module_parameters, *self._delayed_and_trigger[0]]
        construction.check_parameters(parameters)
        self.device = parameters[0].device if parameters else torch.device("cpu")
        self.device_type = self.device.type
        self.is_multi_device_module = len({parameter.device for parameter in parameters}) > 1

    def _prepare_module(self) -> None:
        self.parameter_waits: list[Callable[[], None]] = []
        if self.mixed_precision is not None:
            self._cast_for(self.mixed_precision)
        self._delayed = self._make_delayed()
        self._watch = module_tensors.ParameterWatch(self.module)

    def _cast_for(self, config: precision.MixedPrecision) -> None:
        precision.cast_buffers(self.module, config, self.parameters_to_ignore)
        hook = precision.reduction_hook(config)
        if hook is not None and self._wire_dtype is None:
            self._comm_hooks.append((hook, self.process_group))

    def _make_delayed(self) -> DelayedReduction | None:
        parameters, trigger = self._delayed_and_trigger
        if trigger is None:
            return None
        return DelayedReduction(parameters, trigger, self.process_group)

    # What is averaged in buckets.

    def _make_replica(self, init_sync: bool) -> _C.Replica:
        options = _C.ReplicaOptions()
        options.broadcast_buffers = False  # _sync_buffers(), since joined ranks change the source
        options.init_sync = init_sync
        options.find_unused_parameters = self.find_unused_parameters
        options.static_graph = self.static_graph
        options.skip_all_reduce_unused_params = self.skip_all_reduce_unused_params
        if self._report_nonfinite is not None:
            options.report_nonfinite = construction.POLICIES[self._report_nonfinite]
        options.bucket_cap_mb = self._bucket_cap_mb
        options.bucket_cap_mb_list = self._bucket_cap_mb_list
        options.wire_dtype = self._wire_dtype
        options.ignored = self.parameters_to_ignore
        options.sparse = module_tensors.sparse_names(self.module)
        self._known_buffers = self._present_buffers() if self._sends_buffers_at_start else []
        parameters = self._watch.named_parameters()
        replica = _C.Replica(parameters, self._known_buffers, self.process_group, options)
        for hook, state in self._comm_hooks:
            replica.set_python_hook(state, hook)
        if self._loss_weight is not None:
            replica.set_loss_weight(self._loss_weight)
        set_pass_weight(self.module, replica.pass_weight())
        return replica

    def _replica_of_now(self) -> _C.Replica | None:
        """The replica, of the tensors that the module has now; None if all gradients are delayed.

        After unpickling, and when the graph has become static, it is made here. Collective then.
        """
        if not self._averages_in_buckets:
            return None
        if self._replica is None:
            self._replica = self._make_replica(init_sync=False)
        elif self._watch.has_changed():
            self._take_tensors(self._replica)
        return self._replica

    def _take_tensors(self, replica: _C.Replica) -> None:
        buffers = self._present_buffers()
        replica.set_tensors(self._watch.named_parameters(), buffers)
        self._known_buffers = buffers
        set_pass_weight(self.module, replica.pass_weight())

    def _present_buffers(self) -> module_tensors.Named:
        return module_tensors.named_buffers(self.module, self.parameters_to_ignore)

    # Forward.

    def forward(self, *inputs: Any, **kwargs: Any) -> Any:
        """Run the module's forward; gradients of what it returns are averaged in backward.

        Raises:
            InvalidArgument: parameters were added or removed since the module was wrapped; or the
                gradients of the last backward were not averaged, since its loss used nothing that
                forward had computed.
            BackwardError: this rank left a backward by an exception, and others did not.
        """
        with record_function("DistributedDataParallel.forward"):
            replica = self._replica_of_now()
            inputs, kwargs = self._before_forward(replica, inputs, kwargs)
            try:
                with self._inside_ddp_forward():
                    output = self._run_module(inputs, kwargs)
            except BaseException:
                if replica is not None:
                    replica.forward_failed()
                raise
            self._after_forward(replica, output)
            return output

    def _before_forward(
        self, replica: _C.Replica | None, inputs: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        self._take_optimizers_in_backward(replica)
        if torch.compiler.is_compiling():
            self._await_parameters()  # hooks that modules get after torch.compile() do not run
        if replica is not None:
            replica.synchronize = self._synchronizes()
            replica.before_forward()  # peers may wait in a backward that this rank left
        work = Join.notify_join_context(self)
        if work is not None:
            work.wait()
        if self._syncs_buffers(after_forward=False):
            self._warn_of_two_forwards()
            self._sync_buffers()
        if self._join_config.enable:
            joining.tell_synchronization(self, self._synchronizes())
        if self.device_ids:
            moved, named = self.to_kwargs(inputs, kwargs, self.device_ids[0])
            inputs, kwargs = moved[0], named[0]
        if self.mixed_precision is not None:
            inputs, kwargs = precision.cast_inputs(self.mixed_precision, inputs, kwargs)
        return inputs, kwargs

    def _run_module(self, inputs: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        if self.mixed_precision is None:
            return self.module(*inputs, **kwargs)
        return precision.run(
            self.module, self.mixed_precision, self.parameters_to_ignore, inputs, kwargs
        )

    def _after_forward(self, replica: _C.Replica | None, output: object) -> None:
        tensors = find_tensors(output) if torch.is_grad_enabled() else []
        if self._syncs_buffers(after_forward=True):
            self._sync_buffers()
        if self.buffer_hook is not None:
            self.buffer_hook.wait_after_backward(tensors)
        if replica is not None:
            replica.after_forward(tensors)
        synchronizes = self._synchronizes()
        self.require_forward_param_sync = torch.is_grad_enabled() and synchronizes
        if self.require_forward_param_sync:
            self._passes_before_forward = self._passes()
        if self._delayed is not None:
            self._delayed.synchronize = synchronizes
            self._delayed.prepare()

    def _synchronizes(self) -> bool:
        """Whether the backward of the present forward averages."""
        return self.require_backward_grad_sync and self._accumulation.is_last(self._passes)

    def _passes(self) -> int:
        """Forward passes so far whose backward has reached a parameter."""
        if self._replica is not None:
            return self._replica.passes()
        return 0 if self._delayed is None else self._delayed.passes

    @contextmanager
    def _inside_ddp_forward(self) -> Iterator[None]:
        """torch.compile() cuts the graph of a module into buckets if it runs below a wrapper."""
        torch_class: Any = TorchDistributedDataParallel
        torch_class._active_ddp_module = self
        try:
            yield
        finally:
            torch_class._active_ddp_module = None

    @contextmanager
    def no_sync(self) -> Iterator[None]:
        """Let gradients of the forward passes within stay local and add up."""
        before = self.require_backward_grad_sync
        self.require_backward_grad_sync = False
        try:
            yield
        finally:
            self.require_backward_grad_sync = before

    @property
    def should_finalize_after_backward(self) -> bool:
        """Whether finalize_backward() belongs after backward: always, if it is required."""
        return self.require_manual_backward_finalization

    def finalize_backward(self) -> None:
        """Nothing, where torch 2.15 waits for averages: backward is final when it returns.

        Raises:
            InvalidArgument: within backward, or without require_manual_backward_finalization.
        """
        if self.require_manual_backward_finalization and torch._C._current_graph_task_id() == -1:
            return
        raise InvalidArgument(
            sentences(
                "finalize-backward",
                "finalize_backward() was called during backward, or when there was nothing to "
                "finalize.",
                "backward finalizes the gradients by itself, at its end.",
                "set require_manual_backward_finalization and call it after backward, or do not "
                "call it.",
            )
        )

    def train(self, mode: bool = True) -> DistributedDataParallel:
        """Set training or evaluation mode of the module."""
        super().train(mode)
        return self

    def scatter(self, inputs: Any, kwargs: Any, device_ids: Sequence[int]) -> Any:
        """Split inputs over devices, as torch's does."""
        return scatter_kwargs(inputs, kwargs, device_ids, dim=self.dim)

    def to_kwargs(self, inputs: Any, kwargs: Any, device_id: int) -> Any:
        """Move inputs to a device, as torch's does."""
        return _to_kwargs(inputs, kwargs, torch.device(self.device_type, device_id), True)

    def gather(self, outputs: Any, output_device: int) -> Any:
        """Bring outputs of several devices together, as torch's does."""
        return gather(outputs, output_device, dim=self.dim)

    # Buffers.

    @property
    def forward_sync_buffers(self) -> bool:
        """broadcast_buffers, by the name that it has since torch 2.15."""
        return self.broadcast_buffers

    @forward_sync_buffers.setter
    def forward_sync_buffers(self, value: bool) -> None:
        self.broadcast_buffers = value

    @property
    def modules_buffers(self) -> list[Tensor]:
        """The buffers that are kept the same on all ranks."""
        return [buffer for _, buffer in self._present_buffers()]

    @property
    def named_module_buffers(self) -> dict[str, Tensor]:
        """The same by their names."""
        return dict(self._present_buffers())

    def will_sync_module_buffers(self) -> bool:
        """Whether the next forward brings the buffers together."""
        return (
            self.require_forward_param_sync
            and self.broadcast_buffers
            and any(True for _ in self.module.buffers())
            and bool(self._present_buffers())
        )

    def _syncs_buffers(self, *, after_forward: bool) -> bool:
        """Whether buffers are brought together at this side of the present forward."""
        hooked = self.buffer_hook
        hooked_after = (
            hooked is not None
            and hooked.buffer_comm_hook_location == BufferCommHookLocation.POST_FORWARD
        )
        return hooked_after == after_forward and self.will_sync_module_buffers()

    def _warn_of_two_forwards(self) -> None:
        """Say once what a backward of the forward before this one will fail of."""
        if self._warned_of_two_forwards or self._passes() != self._passes_before_forward:
            return
        self._warned_of_two_forwards = True
        if any(getattr(each, "running_mean", None) is not None for each in self.module.modules()):
            warnings.warn(
                "rank 0's buffers are sent although no backward has followed the previous forward. "
                'A later backward of that forward will raise "modified by an inplace operation", '
                "because BatchNorm uses its buffers in backward. If several forward passes share "
                "one backward, pass broadcast_buffers=False.",
                stacklevel=2,
            )

    def _sync_buffers(self, root: int | None = None) -> None:
        """Make the buffers ``root``'s; without one those of rank 0, or of a rank with inputs."""
        if root is None:
            root = joining.common_rank(self, True) if self._join_config.enable else 0
        if self.buffer_hook is not None:
            self.buffer_hook.wait()
            with torch.no_grad():
                self.buffer_hook.run(self.named_module_buffers)
        elif self._replica is not None:
            if not module_tensors.same_tensors(self._known_buffers, self._present_buffers()):
                self._take_tensors(self._replica)
            self._replica.broadcast_buffers(root)

    # Uneven inputs.

    def join(
        self,
        divide_by_initial_world_size: bool = True,
        enable: bool = True,
        throw_on_early_termination: bool = False,
    ) -> Join:
        """Train in this context if some ranks have more batches than others.

        A rank that has reached its end takes part in what the others do; at the end all have the
        model of one that had inputs until then.

        Args:
            divide_by_initial_world_size: Whether gradients are divided by the number of all ranks,
                or of those that still have inputs. With set_loss_weight() it is the weights.
            enable: False if inputs are even.
            throw_on_early_termination: Whether all raise when the first rank has reached its end.
        """
        return joining.UnevenInputs(
            self,
            enable,
            throw_on_early_termination,
            divide_by_initial_world_size=divide_by_initial_world_size,
        )

    def join_hook(self, **kwargs: Any) -> JoinHook:
        """What torch's Join calls on a rank that has reached its end."""
        return joining.JoinedRank(self, kwargs.get("divide_by_initial_world_size", True))

    @property
    def join_device(self) -> torch.device:
        """Where Join's messages lie."""
        return self.device

    @property
    def join_process_group(self) -> dist.ProcessGroup:
        """Who joins."""
        return self.process_group

    def _end_abandoned(self) -> None:
        if self._replica is not None:
            self._replica.end_abandoned()

    def _join_backward(self, divides_by_all: bool) -> None:
        replica = self._replica_of_now()
        if replica is None:
            return
        weighted = self._loss_weight is not None
        replica.set_loss_weight(None)
        replica.join_backward(0.0 if weighted or not divides_by_all else 1.0)
        replica.set_loss_weight(self._loss_weight)

    # Communication hooks.

    def register_comm_hook(self, state: object, hook: Callable[..., Any]) -> None:
        """Give full buckets to ``hook(state, bucket)``, as torch does; once, before backward.

        Raises:
            TypeError: ``hook`` cannot be called.
            InvalidArgument: there is one already, or its annotations are not a hook's.
        """
        comm_hooks.check_comm_hook(hook)
        if self._comm_hooks:
            raise InvalidArgument(
                sentences(
                    "second-hook",
                    "a second communication hook was registered.",
                    f"{self._comm_hook_name} already handles the buckets.",
                    "register one hook, once; combine several steps in one function.",
                )
            )
        if self._replica is not None:
            self._replica.set_python_hook(state, hook)
        self._comm_hooks.append((hook, state))

    def _register_builtin_comm_hook(self, comm_hook_type: BuiltinCommHookType) -> None:
        """Register the hook that torch means by a type."""
        self.register_comm_hook(self.process_group, comm_hooks.builtin_hook(comm_hook_type))

    def _register_fused_optim(
        self, optim: type, *args: Any, optim_params: Any = None, **kwargs: Any
    ) -> None:
        """Step an optimizer for each bucket as soon as it has been averaged.

        Raises:
            InvalidArgument: torch has no such form of the optimizer.
        """
        from torch.distributed.algorithms._optimizer_overlap import optimizer_overlap

        make: Any = optimizer_overlap._as_overlapped_optim
        overlapped = make(optim, optim_params, *args, **kwargs)
        try:
            overlapped.register_ddp(self)
        except NotImplementedError as error:
            raise InvalidArgument(
                sentences(
                    "fused-optimizer",
                    f"_register_fused_optim() got {optim.__name__}.",
                    "torch cannot step this optimizer one parameter at a time.",
                    "use another optimizer, or step after backward.",
                )
            ) from error

    def _register_buffer_comm_hook(
        self,
        state: object,
        hook: BufferHook,
        comm_hook_location: BufferCommHookLocation = BufferCommHookLocation.POST_FORWARD,
    ) -> None:
        """Give the buffers to ``hook(state, buffers by name)`` instead of sending rank 0's.

        It may return futures, which are done when backward returns.
        """
        self.buffer_hook = BufferCommHook(state, hook, comm_hook_location)

    def _take_optimizers_in_backward(self, replica: _C.Replica | None) -> None:
        if self._looked_for_optimizers or replica is None:
            return
        self._looked_for_optimizers = True
        hook = comm_hooks.take_optimizers_in_backward(self._module_parameters)
        if hook is not None:
            self.register_comm_hook(self.process_group, hook)

    @property
    def _comm_hook_name(self) -> str:
        return comm_hooks.name_of(self._comm_hooks[0][0]) if self._comm_hooks else ""

    # Farandole's own.

    def set_loss_weight(self, weight: float | None) -> None:
        """Say what the loss of the next backward passes is a mean over: tokens, samples, pixels.

        Gradients become sum(weight * gradient) / sum(weight) over ranks and accumulated passes.
        Call it before each backward, on every rank; None ends it. Backward raises InvalidArgument
        where it would add to gradients without a weight: an average that was not zeroed, for one.

        Raises:
            InvalidArgument: it is negative or not a number.
        """
        if weight is not None:
            weight = arguments.float_of("set_loss_weight", "weight", weight)
        if self._replica is not None:
            self._replica.set_loss_weight(weight)
        self._loss_weight = weight

    def stats(self) -> BackwardTimes:
        """How the last synchronized backward went."""
        return backward_times(self._replica.stats() if self._replica is not None else None)

    def set_process_group(self, process_group: dist.ProcessGroup) -> None:
        """Go on with other ranks, for example after shrink_group(). Collective for them."""
        process_group = arguments.group_of("set_process_group", process_group)
        if self._replica is not None:
            self._replica.set_group(process_group)
        if self._delayed is not None:
            self._delayed.set_group(process_group)
        self.process_group = process_group

    # torch's semi-public methods.

    def _set_static_graph(self) -> None:
        """Say that every backward is like the first."""
        if self.static_graph:
            warnings.warn("static_graph is already set.", stacklevel=2)
            return
        if self.find_unused_parameters:
            warnings.warn(
                "find_unused_parameters is not needed with a static graph, which knows them from "
                "the first backward.",
                stacklevel=2,
            )
        self.static_graph = True
        self._replica = None

    def _get_ddp_logging_data(self) -> dict[str, str | int]:
        """How the module was wrapped, its buckets and times, by torch's keys."""
        return logging_data(self)

    @property
    def reducer(self) -> ReducerInterface:
        """What frameworks call of torch's reducer."""
        return ReducerInterface(self)

    def _set_ddp_runtime_logging_sample_rate(self, sample_rate: int) -> None:
        """Keep a rate; times are taken in every backward, since that costs nothing.

        Raises:
            InvalidArgument: it is below 1.
        """
        if sample_rate < 1:
            raise InvalidArgument(
                sentences(
                    "logging-rate",
                    f"_set_ddp_runtime_logging_sample_rate() got {sample_rate}.",
                    "it is the number of steps between two measurements of times.",
                    "pass a number of at least 1.",
                )
            )
        self._runtime_logging_sample_rate = sample_rate

    def _update_process_group(self, new_process_group: Any) -> None:
        """Go on with other ranks; nothing on a rank that is not among them."""
        if new_process_group is not dist.GroupMember.NON_GROUP_MEMBER:
            self.set_process_group(new_process_group)

    def _remove_autograd_hooks(self) -> None:
        """Average no gradients any more; forward is the module's from now on."""
        self._replica = None
        self._averages_in_buckets = False

    def _check_reducer_finalized(self) -> None:
        """Nothing: a backward that returns has averaged all gradients, or has raised."""

    def _set_ddp_sink_clone(self, val: bool) -> None:
        """Keep a value; outputs are never copied."""
        self._ddp_sink_clone = val

    @staticmethod
    def _get_data_parallel_params(module: nn.Module, named_params: bool = False) -> Iterator[Any]:
        """Parameters, or names and parameters, that are not ignored."""
        for name, parameter in module.named_parameters():
            if not hasattr(parameter, "_ddp_ignored"):
                yield (name, parameter) if named_params else parameter

    @staticmethod
    def _set_params_and_buffers_to_ignore_for_model(
        module: nn.Module, params_and_buffers_to_ignore: Collection[str]
    ) -> None:
        """Leave parameters and buffers of these names as they are on each rank."""
        module._ddp_params_and_buffers_to_ignore = params_and_buffers_to_ignore  # type: ignore[assignment]
        for name, tensor in [*module.named_parameters(), *module.named_buffers()]:
            if name in params_and_buffers_to_ignore:
                tensor._ddp_ignored = True  # type: ignore[attr-defined]

    # Copies.

    def state_dict(self, *args: Any, **kwargs: Any) -> Any:
        """Of the module, with the parameters that a sharded optimizer still sends."""
        self._await_parameters()
        return super().state_dict(*args, **kwargs)

    @torch._disable_dynamo  # type: ignore[attr-defined]
    def _await_parameters(self) -> None:
        for wait in self.parameter_waits:
            wait()
        if self._replica is not None:
            self._replica.await_parameters()

    def __getstate__(self) -> dict[str, Any]:
        self._await_parameters()
        self._check_default_group()
        state = copy.copy(self.__dict__)
        for name in (
            "process_group",
            "device_mesh",
            "_replica",
            "_delayed",
            "_watch",
            "_known_buffers",
            "parameter_waits",
        ):
            state.pop(name, None)
        state["_comm_hooks"] = []
        state["buffer_hook"] = None
        return state

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.process_group = construction.choose_group(None, None)
        super().__setstate__(state)  # type: ignore[no-untyped-call]
        self.device_mesh = None
        self._replica = None  # made by the next forward, which is collective anyway
        self._prepare_module()

    def _check_default_group(self) -> None:
        if self.process_group is not dist.group.WORLD:
            raise InvalidArgument(
                sentences(
                    "pickled-ddp",
                    "a DistributedDataParallel whose group is not the default group was pickled "
                    "or copied.",
                    "a group cannot be pickled, and a copy would use the default group.",
                    "pickle or copy .module, and wrap the copy.",
                )
            )


# So that isinstance() of torch.distributed.checkpoint, Accelerate, Lightning and others, who then
# unwrap it or call no_sync(), holds.
TorchDistributedDataParallel.register(DistributedDataParallel)
