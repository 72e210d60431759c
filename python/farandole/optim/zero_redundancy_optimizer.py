# SPDX-License-Identifier: Apache-2.0
"""torch's ZeroRedundancyOptimizer, by the same names, over farandole's shards."""

from __future__ import annotations

import contextlib
import logging
import pickle
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, NoReturn, overload

import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join, Joinable, JoinHook
from torch.optim import Optimizer
from torch.optim.optimizer import ParamsT, StateDict

from farandole import _C, arguments
from farandole.called import collective
from farandole.ddp.distributed_data_parallel import wrapper_of
from farandole.errors import Error, InvalidArgument, sentences
from farandole.optim.arrival import Arrival, compiles_itself
from farandole.optim.element_wise import (
    Partition,
    checked_optimizer,
    is_element_wise,
    name_of,
    partition_for,
)
from farandole.optim.full_state import on_cpu
from farandole.optim.fused_rules import RULES
from farandole.optim.fused_stepper import FusedStepper
from farandole.optim.gathering import MASTER, state_dtype
from farandole.optim.inner_stepper import InnerStepper
from farandole.optim.joining import JoinedRank
from farandole.optim.lazy_tensor import LazyTensor, materialized
from farandole.optim.owned_state import OwnedState
from farandole.optim.parameter_groups import Group, hyperparameters, names_of
from farandole.optim.sharded_state import ShardedState
from farandole.optim.shown_state import ShownState, known_by_all
from farandole.optim.state_dicts import State, States, groups_of, states_of
from farandole.optim.torch_state_dict import Wanted, reader_of_state, wanted_by_torch

Gradients = Literal["full", "shard"]
ShardOver = Literal["world", "host"]

_logger = logging.getLogger(__name__)


class ZeroRedundancyOptimizer(Optimizer, Joinable):
    """Let each rank update a shard of the parameters, and keep the state of that shard alone.

    It is used as torch.distributed.optim.ZeroRedundancyOptimizer is, and isinstance() takes it for
    one::

        model = farandole.DistributedDataParallel(model)
        optimizer = farandole.ZeroRedundancyOptimizer(
            model.parameters(), torch.optim.AdamW, lr=1e-3
        )
        model(x).sum().backward()
        optimizer.step()  # every rank has all new parameters

    SGD, Adam, AdamW, LAMB and LARS are one pass in C++ over gradients, state and the parameters of
    all ranks, and keep half parameters in float32 too, unless master_weights=False. Other classes
    run unchanged on shards. Those of classes that are known to update each element alone are cut
    anywhere and have one size on all ranks; other classes get whole parameters, divided among ranks
    by size. Parameters may have several dtypes; step() is right from the first one.

    Args:
        params: As of any optimizer of torch: parameters, (name, parameter) pairs or groups.
        optimizer_class: Any that updates each parameter from its own gradient and state: of
            torch.optim all but LBFGS and SparseAdam, farandole.optim.LAMB or LARS, or one of your
            own.
        process_group: Of any backend. If None, that of the DistributedDataParallel which has all
            these parameters, else the default group.
        parameters_as_bucket_view: Without effect: parameters always lie in flat buffers.
        overlap_with_ddp: Where ranks do not share memory, step() returns while new parameters come
            from other ranks, and each block of the DistributedDataParallel's module waits for its
            own before its forward. Call wait() before parameters are read or changed in any other
            way than by forward and state_dict() of the module. In shared memory it has no effect
            but for one line in the log: new parameters are there when step() returns.
        gradients: "full": p.grad is the average, as DistributedDataParallel leaves it. "shard":
            p.grad stays this rank's own, and step() averages the own shard from all ranks' memory.
            Then p.grad beyond that is nothing to look at: torch's GradScaler is refused, and
            torch.nn.utils.clip_grad_norm_(), which cannot be, is wrong; clip_grad_norm_() of the
            optimizer is right in both.
        shard_over: "world": all ranks share the parameters and the state, which takes the least
            memory. "host": the ranks of each host share them, and every host has all of them, so
            that gradients alone travel between hosts; with gradients="full", over groups of the
            backend farandole, on hosts with as many ranks and CPUs with the same instructions.
        partition: "elements": shards of one size, cut anywhere, which other than fused classes get
            as tensors of one dimension. "parameters": each parameter is whole on one rank, in its
            shape. None: "elements" for classes that are known to update each element alone, else
            "parameters", which a line in the log says.
        element_wise: True says that a class which is not known updates each element from its own
            gradient and state alone, as partition="elements" does; False is
            partition="parameters".
        master_weights: Whether half parameters have float32 values on the rank that owns them,
            which steps are added to. False saves these 4 bytes an element of the shard; a step
            then computes in float32 from the parameter and rounds. Of fused classes alone.
        stochastic_rounding: Of bfloat16 without master weights: round a step's result up or down
            with the probability of its distance from the other one (arXiv 1502.02551), so that it
            is right on average. The random bits do not depend on ranks, threads, mode or CPU.
        rounding_seed: The same on every rank; an integer, of which 64 bits count.
        **defaults: Hyperparameters of ``optimizer_class``.

    Raises:
        InvalidArgument: arguments that cannot be; the text says why.
        NotSupported: shard_over="host" of parameters that are not on the CPU.
    """

    process_group: dist.ProcessGroup
    _engine: _C.ShardedOptimizer
    _pattern: Optimizer  # of the class, with nothing to step

    @collective
    def __init__(
        self,
        params: ParamsT,
        optimizer_class: type[Optimizer],
        process_group: dist.ProcessGroup | None = None,
        parameters_as_bucket_view: bool = False,
        overlap_with_ddp: bool = False,
        *,
        gradients: Gradients = "full",
        shard_over: ShardOver = "world",
        partition: Partition | None = None,
        element_wise: bool | None = None,
        master_weights: bool = True,
        stochastic_rounding: bool = False,
        rounding_seed: int = 0,
        **defaults: Any,
    ) -> None:
        _be_taken_for_torchs()
        self.partition: Partition = partition_for(optimizer_class, element_wise, partition)
        self._shown = ShownState()
        self._frozen: set[torch.Tensor] = set()  # when shards were cut
        Optimizer.__init__(self, params, {})
        Joinable.__init__(self)
        self.gradients: Gradients = _checked(gradients)
        self.shard_over: ShardOver = _checked_range(shard_over)
        self.parameters_as_bucket_view = parameters_as_bucket_view
        self._take_defaults(optimizer_class, defaults)
        if self.partition == "parameters" and partition is None and element_wise is None:
            _logger.info(
                "ZeroRedundancyOptimizer: %s is not known to update each element alone, so each "
                'parameter is whole on one rank (partition="parameters").',
                name_of(optimizer_class),
            )
        groups = self.param_groups
        if process_group is not None:
            arguments.group_of("ZeroRedundancyOptimizer", process_group)
        self._engine = _C.ShardedOptimizer(
            [group["params"] for group in groups],
            [names_of(groups, index) for index in range(len(groups))],
            process_group,
            gradients,
            bool(master_weights),
            bool(stochastic_rounding),
            _seed_of(rounding_seed),
            self.partition,
            shard_over,
        )
        self.process_group = self._engine.group
        self._arrival: Arrival | None = None
        self._overlaps = overlap_with_ddp and self._engine.sends_parameters
        if overlap_with_ddp and not self._overlaps:
            _logger.info(
                "overlap_with_ddp=True has no effect: new parameters are stored directly into the "
                "memory of the other ranks, and step() is correct from the first one."
            )
        self._stepper: FusedStepper | InnerStepper
        if optimizer_class in RULES:
            self._stepper = FusedStepper(self._engine, optimizer_class)
        else:
            self._stepper = InnerStepper(
                self._engine, groups, lambda shards: optimizer_class(shards, **defaults)
            )
        self._has_shapes_of_parameters = self.partition == "elements" or is_element_wise(
            optimizer_class
        )
        self._note_frozen(groups)

    def _note_frozen(self, groups: Sequence[Group]) -> None:
        """Remember which parameters got no shards now; a step in which they have gradients does."""
        for group in groups:
            self._frozen.update(p for p in group["params"] if not p.requires_grad)

    def _take_defaults(self, optimizer_class: type[Optimizer], given: dict[str, Any]) -> None:
        """Let the class check its hyperparameters and tell those that were not given."""
        groups = self.param_groups
        stand_ins = [
            {**hyperparameters(group), "params": self._stand_ins(group)} for group in groups
        ]
        self._pattern = checked_optimizer(optimizer_class, optimizer_class(stand_ins, **given))
        self.defaults = dict(self._pattern.defaults)
        for group in groups:
            for key, value in self.defaults.items():
                group.setdefault(key, value)
            _check_not_differentiable(group)

    def _stand_ins(self, group: Group) -> list[torch.Tensor]:
        """Like what the class will get of a group on some rank, but with one element in memory."""
        if self.partition == "elements":
            return [torch.zeros(1)]
        return [
            torch.zeros((), dtype=state_dtype(p), device=p.device)
            .expand(p.shape)
            .requires_grad_(p.is_floating_point() or p.is_complex())
            for p in group["params"]
        ]

    # Steps.

    @overload
    def step(self, closure: None = None, **kwargs: Any) -> None: ...

    @overload
    def step(self, closure: Callable[[], float], **kwargs: Any) -> float: ...

    @collective
    def step(self, closure: Callable[[], float] | None = None, **kwargs: Any) -> float | None:
        """Update this rank's shards and store them on every rank. Collective.

        Args:
            closure: Evaluates the model again and returns the loss.
            **kwargs: For step() of a class that has no fused loops.

        Returns:
            What ``closure`` returned.

        Raises:
            StepError: another rank raised in its step, has other hyperparameters, or has gradients
                for other parameters; the text names it.
        """
        Join.notify_join_context(self)
        return self._update_shards(closure, **kwargs)

    def _update_shards(
        self, closure: Callable[[], float] | None = None, **kwargs: Any
    ) -> float | None:
        self._forget_consolidated()
        loss = None
        try:
            self._check_scaler()
            if closure is not None:
                with torch.enable_grad():
                    loss = closure()
            self._stepper.read(self.param_groups)
            self._overlap()
        except Exception as error:
            with contextlib.suppress(Error):
                self._engine.fail_step(f"{type(error).__qualname__}: {error}")
            raise
        with torch.no_grad():
            self._stepper.step(self.param_groups, **kwargs)
        return loss

    def _overlap(self) -> None:
        """Let the model's forward begin before all parameters are here, once its order is known."""
        if not self._overlaps:
            return
        if self._arrival is not None:
            self._arrival.note_gradients()
            self._engine.overlap()
            return
        wrapper = wrapper_of(self.param_groups[0]["params"][0])
        if wrapper is None or wrapper.mixed_precision or compiles_itself(wrapper.module):
            return  # all parameters are read before the first hook runs
        self._arrival = Arrival(wrapper.module, self._engine)
        wrapper.parameter_waits.append(self._arrival.wait)

    def wait(self) -> None:
        """Return when the new parameters of the last step() are here. Local.

        They are when step() returns, unless it raised, or with overlap_with_ddp=True.
        """
        if self._arrival is not None:
            self._arrival.wait()
        else:
            self._engine.wait()

    @collective
    def clip_grad_norm_(
        self,
        max_norm: float | torch.Tensor,
        norm_type: float = 2.0,
        error_if_nonfinite: bool = False,
        foreach: bool | None = None,  # noqa: ARG002
    ) -> torch.Tensor:
        """Scale all gradients so that their norm is at most ``max_norm``. Collective.

        As torch.nn.utils.clip_grad_norm_() of all parameters of this optimizer, in both modes.

        Args:
            max_norm: Of all gradients together.
            norm_type: p of the p-norm; may be inf.
            error_if_nonfinite: Whether a norm that is inf or NaN is an error.
            foreach: Without effect.

        Returns:
            The norm before, the same on every rank, on the device of the parameters. The host does
            not wait for an accelerator, unless ``error_if_nonfinite`` asks for it.
        """
        norm = self._engine.clip_grad_norm(float(max_norm), float(norm_type), error_if_nonfinite)
        return norm.to(torch.get_default_dtype())

    def clip_grad_value_(
        self,
        clip_value: float,
        foreach: bool | None = None,  # noqa: ARG002
    ) -> None:
        """Put each element of the gradients between -clip_value and clip_value. Local.

        As torch.nn.utils.clip_grad_value_() of all parameters of this optimizer, in both modes. To
        be called alike on every rank: with gradients="shard" the next step compares.

        Args:
            clip_value: The largest absolute value.
            foreach: Without effect.
        """
        self._engine.clip_grad_value(float(clip_value))

    @property
    def _step_supports_amp_scaling(self) -> bool:
        """What torch's GradScaler and Lightning ask: whether p.grad is not theirs to unscale."""
        return self.gradients == "shard"

    def _check_scaler(self) -> None:
        """Refuse what torch's GradScaler has found, which it hands over in attributes."""
        if self.__dict__.pop("found_inf", None) is None:
            return
        self.__dict__.pop("grad_scale", None)
        raise InvalidArgument(
            sentences(
                "torch-scaler-with-shards",
                'a torch.amp.GradScaler was asked to step an optimizer with gradients="shard".',
                "it unscales and checks p.grad, which is not the average in this mode.",
                'use farandole.GradScaler, gradients="full", or bfloat16 without a scaler.',
            )
        )

    # Groups of parameters and of ranks.

    @collective
    def add_param_group(self, param_group: Group) -> None:
        """Add a group of parameters, also after steps. Collective.

        Args:
            param_group: "params" and the hyperparameters that are not the defaults.
        """
        super().add_param_group(param_group)
        if not hasattr(self, "_engine"):  # the constructor of torch's class calls it
            return
        groups = self.param_groups
        try:
            _check_not_differentiable(groups[-1])
            self._engine.add_group(
                groups[-1]["params"],
                names_of(groups, len(groups) - 1),
                lambda: self._stepper.prepare_group(groups),
            )
        except Exception:
            groups.pop()
            raise
        self._forget_consolidated()
        self._note_frozen(groups[-1:])
        self._stepper.add_group(groups)

    @collective
    def rebuild(self, process_group: dist.ProcessGroup | None = None) -> None:
        """Cut shards anew and bring their state there. Collective.

        For parameters that were frozen or have moved, and to go on with other ranks, after
        set_process_group() of the model.

        Args:
            process_group: The ranks from now on; those of now if None.

        Raises:
            InvalidArgument: the state of a shard is on a rank that is gone.
        """
        self._rebuild(self.param_groups, process_group)
        self.process_group = self._engine.group

    def _rebuild(self, groups: Sequence[Group], process_group: dist.ProcessGroup | None) -> None:
        self._forget_consolidated()
        self._stepper.rebuild(groups, process_group)
        self._frozen.clear()
        self._note_frozen(groups)

    @property
    def rank(self) -> int:
        """Of this process in the group."""
        return self._engine.rank

    @property
    def world_size(self) -> int:
        """How many ranks the group has."""
        return self._engine.world_size

    @property
    def global_rank(self) -> int:
        """Of this process in the default group."""
        return dist.get_global_rank(self.process_group, self.rank)

    def state_bytes(self) -> int:
        """Bytes of the optimizer's state on this rank."""
        return self._stepper.state_bytes()

    def bytes_moved(self) -> int:
        """Bytes that this rank gives to others in one backward and step with gradients="shard".

        Padding included: of gradients, as they travel (``wire_dtype`` of the
        DistributedDataParallel), and of parameters. With gradients="full" those of gradients go
        once more, for averages on every rank.
        """
        return self._engine.bytes_moved()

    # State.

    @collective
    def consolidate_state_dict(self, to: int = 0) -> None:
        """Bring the state of all shards to one rank, for its state_dict(). Collective.

        It stays there until the next step, on the CPU as torch's.

        Args:
            to: A rank of the group.

        Raises:
            InvalidArgument: there is no such rank.
        """
        if not 0 <= to < self.world_size:
            raise InvalidArgument(
                sentences(
                    "consolidate-rank",
                    f"consolidate_state_dict() got to={to}.",
                    f"the group has ranks 0 to {self.world_size - 1}.",
                    "pass the rank that saves; it must be the same on every rank.",
                )
            )
        self._forget_consolidated()
        receiver = self._engine.shard_rank_of(to)
        if receiver is None:  # its host has all shards itself
            return
        states = self._stepper.gather(self.param_groups, receiver)
        if self.rank != to:
            return
        self._shown.consolidate(
            self.param_groups, [[on_cpu(state) for state in of_group] for of_group in states]
        )

    def _forget_consolidated(self) -> None:
        self._shown.forget()

    @property
    def state(self) -> defaultdict[torch.Tensor, State]:
        """What can be said of each parameter's state on this rank. Local.

        After consolidate_state_dict() it is whole on the rank that has got it. Else tensors are
        ShardedState: of the whole shape, with the elements that this rank has, which are those that
        the next step changes. A change of the dictionary itself changes nothing.
        """
        if not hasattr(self, "_stepper"):  # the constructor of torch's class calls it
            return defaultdict(dict)
        return self._shown.read(self._stepper, self.param_groups, reader_of_state())

    @state.setter
    def state(self, value: object) -> None:  # noqa: ARG002
        """Let the constructor of torch's class do it, and no one else."""
        if hasattr(self, "_stepper"):
            raise InvalidArgument(
                sentences(
                    "state-set",
                    "the state of a ZeroRedundancyOptimizer was set.",
                    "each rank keeps the state of its shards, which this attribute only shows.",
                    "call load_state_dict(), or make a new optimizer.",
                )
            )

    @collective
    def state_dict(self) -> StateDict:
        """What an unsharded optimizer would return, which takes it in load_state_dict() too.

        Half parameters have a "master_parameter" more in their state, and with stochastic rounding
        those of every class have a "step".

        For get_state_dict() and others of torch.distributed.checkpoint.state_dict it is collective:
        tensors are ShardedState, or whole with full_state_dict=True.

        Raises:
            InvalidArgument: the state is not on this rank; it is a RuntimeError, as torch raises.
        """
        if (wanted := wanted_by_torch()) is not None:
            return self._state_dict_for_torch(wanted)
        if not self._shown.is_consolidated:
            raise InvalidArgument(
                sentences(
                    "state-not-consolidated",
                    f"state_dict() was called on rank {self.rank} of {self.world_size}, which "
                    "does not have the whole optimizer state.",
                    "each rank keeps the state of its shards; consolidate_state_dict() was not "
                    "called, or a step came after it.",
                    f"call consolidate_state_dict(to={self.rank}) on every rank first.",
                )
            )
        return super().state_dict()

    def _state_dict_for_torch(self, wanted: Wanted) -> StateDict:
        """What ranks have, or all of it where it is wanted. Collective."""
        if wanted.whole:
            to = self._shard_rank_of_rank_0() if wanted.on_rank_0 else -1
            states = [] if to is None else self._stepper.gather(self.param_groups, to)
            if wanted.on_rank_0 and dist.get_rank() != 0:
                states = []  # what it has there is nothing whole
        else:
            states = known_by_all(self._stepper, self.param_groups)
        with self._shown.instead(self.param_groups, states):
            return super().state_dict()

    def _shard_rank_of_rank_0(self) -> int | None:
        """Of the default group; -1 if this optimizer's group has it not."""
        if 0 not in dist.get_process_group_ranks(self.process_group):
            return -1
        return self._engine.shard_rank_of(dist.get_group_rank(self.process_group, 0))

    @collective
    def load_state_dict(self, state_dict: StateDict) -> None:
        """Take what this or an unsharded optimizer has saved. The same on every rank.

        Local, unless parameters have a state that were frozen when shards were cut.

        Args:
            state_dict: Of an optimizer with the same class, parameters and groups, from any number
                of ranks.

        Raises:
            InvalidArgument: it does not fit; it is a ValueError, as torch raises.
        """
        state_dict = state_dict.copy()
        for before in self._optimizer_load_state_dict_pre_hooks.values():
            changed = before(self, state_dict)
            state_dict = state_dict if changed is None else changed
        groups, states = self._fitting(state_dict)
        self._forget_consolidated()
        if self._has_state_of_frozen(groups, states):
            self._rebuild(groups, None)  # which plans what has been stepped
        self._stepper.load(groups, states)
        self.param_groups = groups
        for after in self._optimizer_load_state_dict_post_hooks.values():
            after(self)

    def _fitting(self, state_dict: StateDict) -> tuple[list[Group], States]:
        groups = groups_of(
            state_dict["param_groups"], self.param_groups, self.defaults, self._pattern
        )
        states = states_of(
            state_dict, groups, self._stepper.required(groups), self._has_shapes_of_parameters
        )
        self.check_states(states)
        return groups, states

    def _has_state_of_frozen(self, groups: Sequence[Group], states: States) -> bool:
        """Whether parameters may have no shards yet that need them; counts their steps then."""
        has_state = False
        for index, group in enumerate(groups):
            steps = self._engine.steps(index)
            for number, parameter in enumerate(group["params"]):
                if states[index][number] and parameter in self._frozen and steps[number] == 0:
                    has_state = True
                    steps[number] = 1
            self._engine.set_steps(index, steps)
        return has_state

    # Checkpoints.

    @property
    def wrapped_class(self) -> type[Optimizer]:
        """That updates the shards."""
        return type(self._pattern)

    @property
    def has_master_weights(self) -> bool:
        """Whether half parameters are kept in float32 too."""
        return self._engine.master_weights

    def owned_states(self) -> Iterator[OwnedState]:
        """What this rank has of the optimizer's state; nothing where rank 0's host has all. Local.

        Tensors are views: the next step changes them.
        """
        if self._engine.shard_rank_of(0) is None:
            return iter(())
        return self._stepper.owned(self.param_groups)

    def gather_objects(self, own: Any) -> list[Any]:
        """What each rank that shares the shards gives, by shard_rank; pickled. Collective."""
        return [pickle.loads(each) for each in self._engine.all_gather(pickle.dumps(own))]

    def check_state_dict(self, state_dict: StateDict) -> None:
        """Fail if load_state_dict() would, and change nothing; hooks are not called. Local.

        Raises:
            InvalidArgument: it does not fit.
            CheckpointError: what is read of it has another checksum.
        """
        if self._optimizer_load_state_dict_pre_hooks:  # which may let it fit
            unknown: list[list[str]] = [[] for _ in self.param_groups]
            self.check_states(states_of(state_dict, self.param_groups, unknown, False))
        else:
            self._fitting(state_dict)

    def check_states(self, states: States) -> None:
        """Fail if this rank's part of a LazyTensor or ShardedState could not be taken. Local.

        Raises:
            InvalidArgument: a ShardedState has other elements.
            CheckpointError: the elements have another checksum.
        """
        for index, group in enumerate(self.param_groups):
            for piece in self._engine.pieces(index):
                parameter = group["params"][piece.parameter]
                for name, value in states[index][piece.parameter].items():
                    is_cut = self.partition == "elements" or name == MASTER
                    if is_cut and isinstance(value, LazyTensor):
                        value.check(parameter, piece.offset, piece.elements)
                    elif is_cut and isinstance(value, ShardedState):
                        value.part(piece)
                    else:
                        materialized(value)  # which keeps what it reads

    def __getstate__(self) -> NoReturn:
        raise InvalidArgument(
            sentences(
                "pickled-optimizer",
                "a ZeroRedundancyOptimizer was pickled or copied.",
                "its shards belong to memory and groups that all ranks share.",
                "save state_dict() after consolidate_state_dict(), and load it into a new "
                "optimizer.",
            )
        )

    # torch's other interfaces.

    def join_hook(self, **kwargs: Any) -> JoinHook:  # noqa: ARG002
        """What a rank without inputs does while others go on: its part of their steps."""
        return JoinedRank(self)

    @property
    def join_device(self) -> torch.device:
        """Of the parameters."""
        parameters: list[torch.Tensor] = [p for group in self.param_groups for p in group["params"]]
        return parameters[0].device if parameters else torch.device("cpu")

    @property
    def join_process_group(self) -> dist.ProcessGroup:
        """The group of the ranks."""
        return self.process_group

    @property
    def _overlap_with_ddp(self) -> NoReturn:
        """What torch's hook_with_zero_step() asks when it is made.

        Raises:
            InvalidArgument: always.
        """
        raise InvalidArgument(
            sentences(
                "hook-with-zero-step",
                "torch's hook_with_zero_step was made for a farandole.ZeroRedundancyOptimizer.",
                "it runs the step of torch's own ZeroRedundancyOptimizer inside the reduction, "
                "and this optimizer has no such step.",
                "leave the hook out, and call step() after backward.",
            )
        )


def _be_taken_for_torchs() -> None:
    """Let isinstance() of Lightning and others, who then call consolidate_state_dict(), hold.

    Not at import: what torch imports beside its own class takes most of a second.
    """
    from torch.distributed.optim import ZeroRedundancyOptimizer as TorchZeroRedundancyOptimizer

    TorchZeroRedundancyOptimizer.register(ZeroRedundancyOptimizer)


def _seed_of(seed: object) -> int:
    """64 bits of it."""
    if not isinstance(seed, int):
        raise arguments.wrong("ZeroRedundancyOptimizer", "rounding_seed", seed, "an int")
    return seed % 2**64


def _checked(gradients: Gradients) -> Gradients:
    if gradients not in ("full", "shard"):
        raise InvalidArgument(
            sentences(
                "gradients-mode",
                f"ZeroRedundancyOptimizer got gradients={gradients!r}.",
                'p.grad is either the average ("full") or this rank\'s own until step() ("shard").',
                "pass one of these.",
            )
        )
    return gradients


def _checked_range(shard_over: ShardOver) -> ShardOver:
    if shard_over not in ("world", "host"):
        raise InvalidArgument(
            sentences(
                "shard-over",
                f"ZeroRedundancyOptimizer got shard_over={shard_over!r}.",
                'parameters are divided among all ranks ("world") or among those of each host '
                '("host").',
                "pass one of these.",
            )
        )
    return shard_over


def _check_not_differentiable(group: Group) -> None:
    if group.get("differentiable"):
        raise InvalidArgument(
            sentences(
                "differentiable",
                "ZeroRedundancyOptimizer got differentiable=True.",
                "new parameters come from the memory of other ranks, where autograd cannot follow "
                "them.",
                "leave the option out.",
            )
        )
