# SPDX-License-Identifier: Apache-2.0
# ruff: noqa
# fmt: off
"""
Farandole's C++ library. Use the package farandole: this module may change.
"""
from __future__ import annotations
import collections.abc
import datetime
import torch
import torch._C._distributed_c10d
import torch.distributed.distributed_c10d
import typing
__all__: list[str] = ['ArrivalCounter', 'BackendInfo', 'BackwardStats', 'BucketPlan', 'CalledFunction', 'CheckpointEntry', 'CheckpointReader', 'CheckpointWriter', 'Config', 'EpochShare', 'Event', 'GradScaler', 'GradScalerState', 'GradientHome', 'Launch', 'NonfinitePolicy', 'OpenAnnotation', 'PassWeight', 'PendingCheckpoint', 'Piece', 'ProcessGroupFarandole', 'Replica', 'ReplicaOptions', 'SegmentBacking', 'ShardedOptimizer', 'SliceList', 'TensorSlice', 'UpdateRule', 'WorkFarandole', 'abort', 'adam_rule', 'address_of_this_host', 'all_gather', 'all_reduce', 'all_to_all', 'backends', 'barrier', 'broadcast', 'check_apart', 'check_tensor', 'emit_garbage', 'end_step', 'find_launch', 'gather', 'go_alone', 'is_recording', 'lamb_rule', 'lars_rule', 'linear_scaled_lr', 'local_rank', 'local_world_size', 'meet', 'monitored_barrier', 'now_ns', 'obstacle_to', 'rank', 'recent_events', 'recv', 'reduce', 'reduce_scatter', 'remove_after_success', 'scatter', 'send', 'sgd_rule', 'shut_down_all_groups', 'source_rank', 'start_recording', 'stop_recording', 'symmetric_empty', 'sync_batch_norm', 'torch_version_built', 'update_parameters', 'version', 'watch_data_loaders', 'world_size']
class SegmentBacking:
    """
    Where the pages of shared segments come from.

    Members:

      AUTO : memfd, or a file in /dev/shm without it

      MEMFD : memfd_create alone

      TMPFILE : an unnamed file in /dev/shm
    """
    AUTO: typing.ClassVar[SegmentBacking]
    MEMFD: typing.ClassVar[SegmentBacking]
    TMPFILE: typing.ClassVar[SegmentBacking]
    __members__: typing.ClassVar[dict[str, SegmentBacking]]
    def __eq__(self, other: typing.Any) -> bool:
        ...
    def __getstate__(self) -> int:
        ...
    def __hash__(self) -> int:
        ...
    def __index__(self) -> int:
        ...
    def __init__(self, value: typing.SupportsInt) -> None:
        ...
    def __int__(self) -> int:
        ...
    def __ne__(self, other: typing.Any) -> bool:
        ...
    def __repr__(self) -> str:
        ...
    def __setstate__(self, state: typing.SupportsInt) -> None:
        ...
    def __str__(self) -> str:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def value(self) -> int:
        ...
class NonfinitePolicy:
    """
    What becomes of a backward in which a gradient has an Inf or NaN.

    Members:

      OFF : nobody looks

      WARN : a line in the log

      SKIP : and no parameter has a gradient

      RAISE : a BackwardError on every rank
    """
    OFF: typing.ClassVar[NonfinitePolicy]
    RAISE: typing.ClassVar[NonfinitePolicy]
    SKIP: typing.ClassVar[NonfinitePolicy]
    WARN: typing.ClassVar[NonfinitePolicy]
    __members__: typing.ClassVar[dict[str, NonfinitePolicy]]
    def __eq__(self, other: typing.Any) -> bool:
        ...
    def __getstate__(self) -> int:
        ...
    def __hash__(self) -> int:
        ...
    def __index__(self) -> int:
        ...
    def __init__(self, value: typing.SupportsInt) -> None:
        ...
    def __int__(self) -> int:
        ...
    def __ne__(self, other: typing.Any) -> bool:
        ...
    def __repr__(self) -> str:
        ...
    def __setstate__(self, state: typing.SupportsInt) -> None:
        ...
    def __str__(self) -> str:
        ...
    @property
    def name(self) -> str:
        ...
    @property
    def value(self) -> int:
        ...
class Config:
    """
    Every FARANDOLE_* environment variable, read.
    """
    @staticmethod
    def from_environment() -> Config:
        """
        Read the environment; raise InvalidArgument for a value that cannot be.
        """
    @property
    def born_gradients(self) -> bool:
        """
        FARANDOLE_BORN_GRADIENTS.
        """
    @property
    def check_finite(self) -> NonfinitePolicy:
        """
        FARANDOLE_CHECK_FINITE.
        """
    @property
    def host_id(self) -> str:
        """
        FARANDOLE_HOST_ID; empty: of the kernel, network and user.
        """
    @property
    def link_timeout(self) -> datetime.timedelta:
        """
        FARANDOLE_LINK_TIMEOUT_S.
        """
    @property
    def log_level(self) -> str:
        """
        FARANDOLE_LOG.
        """
    @property
    def network_interface(self) -> str:
        """
        FARANDOLE_NETWORK_INTERFACE; empty: the first one that is up.
        """
    @property
    def segments(self) -> SegmentBacking:
        """
        FARANDOLE_SEGMENTS.
        """
    @property
    def spin(self) -> datetime.timedelta:
        """
        FARANDOLE_SPIN_US: how long a waiting rank spins.
        """
    @property
    def staging_bytes(self) -> int:
        """
        FARANDOLE_STAGING_BYTES of one ring.
        """
    @property
    def timeout(self) -> datetime.timedelta:
        """
        FARANDOLE_TIMEOUT_S, where a call has none.
        """
class CalledFunction:
    """
    Within it, errors about ranks that have ended name this function of the library.
    """
    def __enter__(self) -> None:
        ...
    def __exit__(self, arg0: typing.Any, arg1: typing.Any, arg2: typing.Any) -> None:
        ...
    def __init__(self, name: str) -> None:
        ...
class BackendInfo:
    """
    One way to communicate.
    """
    @property
    def built(self) -> bool:
        """
        Whether this build holds it.
        """
    @property
    def detail(self) -> str:
        """
        What it serves, or how to get it.
        """
    @property
    def name(self) -> str:
        """
        "tcp", "shm", "mpi" or "nccl".
        """
class Event:
    """
    One finished collective as its calling thread saw it.
    """
    def __str__(self) -> str:
        ...
    @property
    def arrived_ns(self) -> int:
        """
        When the last peer had entered.
        """
    @property
    def begin_ns(self) -> int:
        """
        Start, steady clock.
        """
    @property
    def bytes(self) -> int:
        """
        Of this rank's tensor.
        """
    @property
    def end_ns(self) -> int:
        """
        End, steady clock.
        """
    @property
    def group(self) -> int:
        """
        A small number for the group's name.
        """
    @property
    def latest_rank(self) -> int:
        """
        The peer that was waited for last; -1: nobody.
        """
    @property
    def operation(self) -> str:
        """
        Its name, as "all_reduce".
        """
    @property
    def sequence(self) -> int:
        """
        Its number in the group, from 1.
        """
class ProcessGroupFarandole(torch._C._distributed_c10d.Backend):
    """
    The backend "farandole" of torch.distributed.
    """
    class Options(torch._C._distributed_c10d.Backend.Options):
        """
        What a group is made with.
        """
        def __init__(self, timeout: datetime.timedelta = ...) -> None:
            """
            Options with the timeout of every collective.
            """
        @property
        def is_default(self) -> bool:
            """
            Whether it is the default group, in which ranks of others are counted.
            """
        @is_default.setter
        def is_default(self, arg0: bool) -> None:
            ...
        @property
        def timeout(self) -> datetime.timedelta:
            """
            How long a collective waits for a late rank.
            """
        @timeout.setter
        def timeout(self, arg0: datetime.timedelta) -> None:
            ...
    @staticmethod
    def of(group: torch.distributed.distributed_c10d.ProcessGroup) -> ProcessGroupFarandole:
        """
        The farandole backend of a group, also under TORCH_DISTRIBUTED_DEBUG=DETAIL; None if it has another.
        """
    def __init__(self, store: torch.distributed.distributed_c10d.Store, rank: typing.SupportsInt, size: typing.SupportsInt, options: ProcessGroupFarandole.Options) -> None:
        """
        Meet the other ranks in ``store``. Collective.
        """
    def _end_time_estimate(self) -> float:
        """
        How many microseconds they would have taken.
        """
    def _start_time_estimate(self) -> None:
        """
        Estimate collectives from now on instead of running them. Collective at first.
        """
    def perform_nocolor_split(self, device: torch.device) -> None:
        """
        Do nothing: ranks outside of a new group have no part in it.
        """
    @property
    def host(self) -> int:
        """
        This host, from 0; hosts are counted by their first ranks.
        """
    @property
    def local_rank(self) -> int:
        """
        This rank among those on its host.
        """
    @property
    def local_world_size(self) -> int:
        """
        How many ranks are on this host.
        """
class WorkFarandole(torch.distributed.distributed_c10d.Work):
    """
    One collective of a ProcessGroupFarandole.
    """
    @property
    def sequence(self) -> int:
        """
        The number of the collective in its group, from 1; 0 for a transfer.
        """
class Launch:
    """
    How this process was started.
    """
    @property
    def has_meeting_place(self) -> bool:
        """
        Whether the environment tells where the ranks meet.
        """
    @property
    def launcher(self) -> str:
        """
        "torchrun", "mpirun", "srun" or "alone".
        """
    @property
    def local_rank(self) -> int:
        """
        This process on its host.
        """
    @property
    def local_world_size(self) -> int:
        """
        All processes on its host.
        """
    @property
    def master_address(self) -> str:
        """
        Where the store is, or "".
        """
    @property
    def master_port(self) -> int:
        """
        Its port.
        """
    @property
    def rank(self) -> int:
        """
        This process.
        """
    @property
    def world_size(self) -> int:
        """
        All processes.
        """
class EpochShare:
    """
    The samples of one rank in each epoch.
    """
    @staticmethod
    def of_lengths(lengths: collections.abc.Sequence[typing.SupportsInt], batch_size: typing.SupportsInt, bucket_batches: typing.SupportsInt, shuffle: bool, num_replicas: typing.SupportsInt, rank: typing.SupportsInt, seed: typing.SupportsInt, drop_last: bool, even_divisible: bool) -> EpochShare:
        """
        That of a DistributedBucketBatchSampler.
        """
    @staticmethod
    def of_samples(size: typing.SupportsInt, shuffle: bool, num_replicas: typing.SupportsInt, rank: typing.SupportsInt, seed: typing.SupportsInt, drop_last: bool, even_divisible: bool) -> EpochShare:
        """
        That of a DistributedSampler.
        """
    @staticmethod
    def of_weights(weights: torch.Tensor, num_samples: typing.SupportsInt, replacement: bool, num_replicas: typing.SupportsInt, rank: typing.SupportsInt, seed: typing.SupportsInt, drop_last: bool, even_divisible: bool) -> EpochShare:
        """
        That of a DistributedWeightedRandomSampler.
        """
    def begin_batches(self) -> list[list[int]]:
        """
        The batches of this rank.
        """
    def begin_pass(self) -> list[int]:
        """
        The samples of this rank.
        """
    def check_state(self, state: collections.abc.Mapping[str, typing.SupportsInt]) -> None:
        """
        Fail if that would.
        """
    def load_state(self, state: collections.abc.Mapping[str, typing.SupportsInt]) -> None:
        """
        Begin there.
        """
    def set_epoch(self, epoch: typing.SupportsInt) -> None:
        """
        Another begins anew.
        """
    def state(self, consumed: typing.SupportsInt) -> dict[str, int]:
        """
        For a checkpoint.
        """
    @property
    def epoch(self) -> int:
        """
        That of the next pass.
        """
    @property
    def length(self) -> int:
        """
        Samples, or batches, of this rank.
        """
    @property
    def next_position(self) -> int:
        """
        Where the next pass begins.
        """
    @property
    def seed(self) -> int:
        """
        That of epoch 0.
        """
    @property
    def total_length(self) -> int:
        """
        Those of all ranks.
        """
class PassWeight:
    """
    What the loss of a wrapper's passes counts for on this rank.
    """
class BucketPlan:
    """
    Which gradient lies in which bucket.
    """
    class Slot:
        """
        The place of one gradient.
        """
        @property
        def elements(self) -> int:
            """
            Elements of the gradient.
            """
        @property
        def offset(self) -> int:
            """
            Elements from the start of the bucket.
            """
        @property
        def parameter(self) -> int:
            """
            Index into the parameters.
            """
    class Bucket:
        """
        Gradients of one dtype and device.
        """
        @property
        def bytes(self) -> int:
            """
            Of its gradients.
            """
        @property
        def elements(self) -> int:
            """
            Of its gradients.
            """
        @property
        def padded_elements(self) -> int:
            """
            With padding.
            """
        @property
        def slots(self) -> list[BucketPlan.Slot]:
            """
            The gradients, in order.
            """
    @property
    def buckets(self) -> list[BucketPlan.Bucket]:
        """
        In the order in which they are launched.
        """
class BackwardStats:
    """
    How the last synchronized backward went; nanoseconds.
    """
    class Bucket:
        """
        One bucket on this rank.
        """
        @property
        def bytes(self) -> int:
            """
            Of its gradients.
            """
        @property
        def complete_ns(self) -> int:
            """
            All ranks had launched it; 0 if that is not known.
            """
        @property
        def finish_ns(self) -> int:
            """
            This rank's part was done.
            """
        @property
        def parameters(self) -> int:
            """
            How many.
            """
        @property
        def ready_ns(self) -> int:
            """
            Its last gradient had come.
            """
    class Rank:
        """
        What a rank told of itself.
        """
        @property
        def begin_ns(self) -> int:
            """
            Its backward began.
            """
        @property
        def end_ns(self) -> int:
            """
            It had its last gradient.
            """
    @property
    def backward(self) -> int:
        """
        Synchronized backward passes so far.
        """
    @property
    def begin_ns(self) -> int:
        """
        Backward began.
        """
    @property
    def buckets(self) -> list[BackwardStats.Bucket]:
        """
        In the order of the plan.
        """
    @property
    def copied_bytes(self) -> int:
        """
        Of gradients that were not computed inside their buckets.
        """
    @property
    def end_ns(self) -> int:
        """
        The last gradient had come.
        """
    @property
    def finish_ns(self) -> int:
        """
        All gradients were averages.
        """
    @property
    def latest_rank(self) -> int:
        """
        Which rank was last.
        """
    @property
    def plans(self) -> int:
        """
        Of buckets, made so far.
        """
    @property
    def ranks(self) -> list[BackwardStats.Rank]:
        """
        By rank.
        """
class ReplicaOptions:
    """
    How replicas are kept alike.
    """
    def __init__(self) -> None:
        """
        The defaults.
        """
    @property
    def broadcast_buffers(self) -> bool:
        """
        Rank 0's buffers go to all before each synchronized forward.
        """
    @broadcast_buffers.setter
    def broadcast_buffers(self, arg0: bool) -> None:
        ...
    @property
    def bucket_cap_mb(self) -> float | None:
        """
        MiB; None: the group's.
        """
    @bucket_cap_mb.setter
    def bucket_cap_mb(self, arg0: typing.SupportsFloat | None) -> None:
        ...
    @property
    def bucket_cap_mb_list(self) -> list[float]:
        """
        MiB of the first buckets.
        """
    @bucket_cap_mb_list.setter
    def bucket_cap_mb_list(self, arg0: collections.abc.Sequence[typing.SupportsFloat]) -> None:
        ...
    @property
    def find_unused_parameters(self) -> bool:
        """
        Missing gradients count as zeros.
        """
    @find_unused_parameters.setter
    def find_unused_parameters(self, arg0: bool) -> None:
        ...
    @property
    def ignored(self) -> set[str]:
        """
        Names that stay as they are.
        """
    @ignored.setter
    def ignored(self, arg0: collections.abc.Set[str]) -> None:
        ...
    @property
    def init_sync(self) -> bool:
        """
        Compare the modules and send rank 0's state to all at the start.
        """
    @init_sync.setter
    def init_sync(self, arg0: bool) -> None:
        ...
    @property
    def report_nonfinite(self) -> NonfinitePolicy | None:
        """
        What becomes of gradients with Inf or NaN; None: FARANDOLE_CHECK_FINITE.
        """
    @report_nonfinite.setter
    def report_nonfinite(self, arg0: NonfinitePolicy | None) -> None:
        ...
    @property
    def skip_all_reduce_unused_params(self) -> bool:
        """
        Buckets of unused parameters are not reduced.
        """
    @skip_all_reduce_unused_params.setter
    def skip_all_reduce_unused_params(self, arg0: bool) -> None:
        ...
    @property
    def sparse(self) -> set[str]:
        """
        Names with sparse gradients.
        """
    @sparse.setter
    def sparse(self, arg0: collections.abc.Set[str]) -> None:
        ...
    @property
    def static_graph(self) -> bool:
        """
        Every backward is like the first.
        """
    @static_graph.setter
    def static_graph(self, arg0: bool) -> None:
        ...
    @property
    def wire_dtype(self) -> torch.dtype | None:
        """
        What gradients travel as, torch.bfloat16 or torch.float16; None: as they are.
        """
    @wire_dtype.setter
    def wire_dtype(self, arg0: torch.dtype | None) -> None:
        ...
class Replica:
    """
    One rank's copy of a model.
    """
    def __init__(self, parameters: collections.abc.Sequence[tuple[str, torch.Tensor]], buffers: collections.abc.Sequence[tuple[str, torch.Tensor]], group: torch.distributed.distributed_c10d.ProcessGroup, options: ReplicaOptions) -> None:
        """
        Compare and send the state. Collective.
        """
    def after_forward(self, outputs: collections.abc.Sequence[torch.Tensor]) -> None:
        """
        Tell what it returned.
        """
    def await_parameters(self) -> None:
        """
        Wait for what an optimizer still sends.
        """
    def before_forward(self) -> None:
        """
        Tell that a forward begins.
        """
    def broadcast(self, root: typing.SupportsInt = 0) -> None:
        """
        Send parameters and buffers of ``root`` to all. Collective.
        """
    def broadcast_buffers(self, root: typing.SupportsInt = 0) -> None:
        """
        Send the buffers of ``root`` to all. Collective.
        """
    def end_abandoned(self) -> None:
        """
        Tell peers of a backward that an exception has left. Collective if there is one.
        """
    def end_join(self) -> None:
        """
        Drop p.grad if it has the averages of backwards in which only others had inputs.
        """
    def forward_failed(self) -> None:
        """
        Tell that it raised.
        """
    def join_backward(self, weight: typing.SupportsFloat = 0) -> bool:
        """
        Take part in one backward of the others; whether one had inputs. Collective.
        """
    def pass_weight(self) -> PassWeight:
        """
        That weight, as it is at any time.
        """
    def passes(self) -> int:
        """
        Forward passes so far whose backward has reached a parameter.
        """
    def plan(self) -> BucketPlan:
        """
        The buckets; empty before the first backward.
        """
    def set_group(self, group: torch.distributed.distributed_c10d.ProcessGroup) -> None:
        """
        Go on with other ranks. Collective.
        """
    def set_loss_weight(self, weight: typing.SupportsFloat | None) -> None:
        """
        What the loss is a mean over; None: nothing.
        """
    def set_python_hook(self, state: typing.Any, hook: typing.Any) -> None:
        """
        Give full buckets to ``hook(state, bucket)``.
        """
    def set_tensors(self, parameters: collections.abc.Sequence[tuple[str, torch.Tensor]], buffers: collections.abc.Sequence[tuple[str, torch.Tensor]]) -> None:
        """
        Go on with other tensors by the same names.
        """
    def stats(self) -> BackwardStats:
        """
        How the last synchronized backward went.
        """
    def will_send_buffers(self) -> bool:
        """
        Whether the next forward does.
        """
    @property
    def group(self) -> torch.distributed.distributed_c10d.ProcessGroup:
        """
        What the replicas talk through.
        """
    @property
    def synchronize(self) -> bool:
        """
        Whether the next forward passes are synchronized.
        """
    @synchronize.setter
    def synchronize(self, arg1: bool) -> None:
        ...
class ArrivalCounter:
    """
    Counts gradients of parameters until a step has all.
    """
    def __init__(self, parameters: collections.abc.Sequence[torch.Tensor], callback: typing.Any) -> None:
        """
        Call ``callback(None)`` then, and ``callback(index)`` of a parameter with one more.
        """
    def has_arrivals(self) -> bool:
        """
        Whether some came since.
        """
    def reset(self, passes: typing.SupportsInt) -> None:
        """
        Begin a step in which each gets so many.
        """
class GradientHome:
    """
    Keeps p.grad of parameters in memory that ranks share.
    """
    def __init__(self, parameters: collections.abc.Sequence[torch.Tensor]) -> None:
        """
        Hook the parameters.
        """
    def assign(self, first: typing.SupportsInt, memory: torch.Tensor) -> None:
        """
        Let parameters from ``first`` on have their slots in ``memory``, which they fill.
        """
    def gather(self, first: typing.SupportsInt) -> torch.Tensor | None:
        """
        Move these gradients into their slots and return the memory; None if that cannot be.
        """
    def settle(self, first: typing.SupportsInt) -> None:
        """
        Let p.grad be the slot, whatever was put there since gather().
        """
class UpdateRule:
    """
    How one step changes a parameter.
    """
    @property
    def description(self) -> str:
        """
        Name and hyperparameters.
        """
    @property
    def state_names(self) -> list[str]:
        """
        The arrays that each parameter needs.
        """
class Piece:
    """
    A part of a parameter that this rank owns.
    """
    @property
    def elements(self) -> int:
        """
        How many.
        """
    @property
    def offset(self) -> int:
        """
        Elements, in the order of its memory.
        """
    @property
    def parameter(self) -> int:
        """
        Index in its group.
        """
class ShardedOptimizer:
    """
    Steps the shards of parameters that this rank owns, for all.
    """
    def __init__(self, groups: collections.abc.Sequence[collections.abc.Sequence[torch.Tensor]], names: collections.abc.Sequence[collections.abc.Sequence[str]], group: torch.distributed.distributed_c10d.ProcessGroup | None, gradients: str, master_weights: bool = True, stochastic_rounding: bool = False, rounding_seed: typing.SupportsInt = 0, partition: str = 'elements', shard_over: str = 'world') -> None:
        """
        Make the parameters views of flat buffers. Collective.
        """
    def add_group(self, parameters: collections.abc.Sequence[torch.Tensor], names: collections.abc.Sequence[str], then: collections.abc.Callable[[], None] | None = None) -> None:
        """
        One more group, in which ``then`` takes part, on all ranks or on none. Collective.
        """
    def all_gather(self, data: bytes) -> list[bytes]:
        """
        Bytes of every rank, of any lengths. Collective.
        """
    def begin_rebuild(self, group: torch.distributed.distributed_c10d.ProcessGroup | None) -> None:
        """
        Gather over these ranks from now on. Collective.
        """
    def begin_step(self, description: str) -> bool:
        """
        Wait for all and set the gradients of shards; whether there are others. Collective.
        """
    def broadcast(self, tensor: torch.Tensor, root: typing.SupportsInt) -> None:
        """
        From one rank, in place. Collective.
        """
    def bytes_moved(self) -> int:
        """
        Stored into other ranks or sent, in one backward and step.
        """
    def clip_grad_norm(self, max_norm: typing.SupportsFloat, norm_type: typing.SupportsFloat, error_if_nonfinite: bool) -> torch.Tensor:
        """
        The norm before, on the parameters' device. Collective.
        """
    def clip_grad_value(self, clip_value: typing.SupportsFloat) -> None:
        """
        Bring elements of gradients into [-clip_value, clip_value].
        """
    def end_step(self) -> None:
        """
        Store shards into all ranks. Collective.
        """
    def fail_step(self, text: str) -> None:
        """
        Tell the others that this rank raised. Collective.
        """
    def finish_rebuild(self, then: collections.abc.Callable[[], None] | None = None) -> None:
        """
        Plan anew, with the part of ``then``, on all ranks or on none. Collective.
        """
    def gather(self, group: typing.SupportsInt, pieces: collections.abc.Sequence[torch.Tensor], to: typing.SupportsInt) -> list[torch.Tensor]:
        """
        Whole tensors of pieces, on one rank or (-1) on all. Collective.
        """
    def make_state(self, rules: collections.abc.Sequence[UpdateRule]) -> None:
        """
        Make the arrays that step() needs.
        """
    def overlap(self) -> None:
        """
        Let steps return while parameters are sent; who reads them calls wait_for().
        """
    def pieces(self, group: typing.SupportsInt) -> list[Piece]:
        """
        This rank's, of a group.
        """
    def set_steps(self, group: typing.SupportsInt, steps: collections.abc.Sequence[typing.SupportsInt], has_state: collections.abc.Sequence[bool] = []) -> None:
        """
        Steps taken, by parameter; whether they have written to its arrays.
        """
    def shard_rank_of(self, rank: typing.SupportsInt) -> int | None:
        """
        That of a rank; None if it shares no shards with this one.
        """
    def shards(self, group: typing.SupportsInt) -> list[torch.Tensor]:
        """
        The same as tensors of one dimension, or as whole parameters.
        """
    def state(self, group: typing.SupportsInt, name: str) -> list[torch.Tensor]:
        """
        One of those arrays, by piece; empty if it was not made.
        """
    def state_bytes(self) -> int:
        """
        Of this rank's arrays.
        """
    def step(self, rules: collections.abc.Sequence[UpdateRule]) -> None:
        """
        One step, with a rule for each group. Collective.
        """
    def steps(self, group: typing.SupportsInt) -> list[int]:
        """
        Steps taken, by parameter.
        """
    def wait(self) -> None:
        """
        Until the last step's parameters have come.
        """
    def wait_for(self, parameters: collections.abc.Sequence[torch.Tensor]) -> None:
        """
        Until these have come.
        """
    @property
    def group(self) -> torch.distributed.distributed_c10d.ProcessGroup:
        """
        The one that the program gave.
        """
    @property
    def has_whole_parameters(self) -> bool:
        """
        Whether each piece is a whole parameter.
        """
    @property
    def is_sending(self) -> bool:
        """
        Whether parameters are on their way.
        """
    @property
    def join_failed(self) -> bool:
        """
        Whether the others got an error in the last backward after a join.
        """
    @property
    def master_weights(self) -> bool:
        """
        Whether half parameters have float32 values.
        """
    @property
    def rank(self) -> int:
        """
        Of this process.
        """
    @property
    def sends_parameters(self) -> bool:
        """
        Whether steps send parameters to ranks that share no memory.
        """
    @property
    def shard_rank(self) -> int:
        """
        Of this process among those that share shards with it.
        """
    @property
    def stochastic_rounding(self) -> bool:
        """
        Whether those of bfloat16 are rounded by chance.
        """
    @property
    def was_left_out(self) -> bool:
        """
        Whether the last step was, for an Inf or NaN under a GradScaler.
        """
    @property
    def world_size(self) -> int:
        """
        How many ranks.
        """
class GradScalerState:
    """
    What a checkpoint has of a GradScaler.
    """
    def __init__(self, scale: typing.SupportsFloat, growth_factor: typing.SupportsFloat, backoff_factor: typing.SupportsFloat, growth_interval: typing.SupportsInt, growth_tracker: typing.SupportsInt) -> None:
        """
        Of these numbers.
        """
    @property
    def backoff_factor(self) -> float:
        """
        On the scale.
        """
    @property
    def growth_factor(self) -> float:
        """
        On the scale.
        """
    @property
    def growth_interval(self) -> int:
        """
        Steps.
        """
    @property
    def growth_tracker(self) -> int:
        """
        Steps without Inf or NaN since the scale changed.
        """
    @property
    def scale(self) -> float:
        """
        On the loss.
        """
class GradScaler:
    """
    Loss scaling that all ranks agree on.
    """
    def __init__(self, init_scale: typing.SupportsFloat, growth_factor: typing.SupportsFloat, backoff_factor: typing.SupportsFloat, growth_interval: typing.SupportsInt, enabled: bool) -> None:
        """
        As torch's.
        """
    def abandon_step(self, id: typing.SupportsInt) -> None:
        """
        Instead of it: the optimizer raised.
        """
    def begin_step(self, id: typing.SupportsInt, parameters: collections.abc.Sequence[torch.Tensor], engine: ShardedOptimizer) -> bool:
        """
        Whether to step the optimizer. Collective.
        """
    def end_step(self, id: typing.SupportsInt) -> bool:
        """
        Whether the step was taken.
        """
    def get_scale(self) -> float:
        """
        1 if it is not enabled.
        """
    def scale(self, output: torch.Tensor) -> torch.Tensor:
        """
        The output times the scale.
        """
    def unscale_(self, id: typing.SupportsInt, parameters: collections.abc.Sequence[torch.Tensor], engine: ShardedOptimizer) -> None:
        """
        Divide gradients. Collective.
        """
    def update(self, new_scale: typing.SupportsFloat | None = None) -> None:
        """
        Lower or raise the scale, or set it.
        """
    @property
    def backoff_factor(self) -> float:
        """
        On the scale.
        """
    @backoff_factor.setter
    def backoff_factor(self, arg1: typing.SupportsFloat) -> None:
        ...
    @property
    def growth_factor(self) -> float:
        """
        On the scale.
        """
    @growth_factor.setter
    def growth_factor(self, arg1: typing.SupportsFloat) -> None:
        ...
    @property
    def growth_interval(self) -> int:
        """
        Steps.
        """
    @growth_interval.setter
    def growth_interval(self, arg1: typing.SupportsInt) -> None:
        ...
    @property
    def is_between_steps(self) -> bool:
        """
        Whether nothing is open until update().
        """
    @property
    def state(self) -> GradScalerState:
        """
        For a checkpoint.
        """
    @state.setter
    def state(self, arg1: GradScalerState) -> None:
        ...
class TensorSlice:
    """
    What one rank has of a tensor.
    """
    @property
    def elements(self) -> torch.Tensor:
        ...
    @property
    def key(self) -> str:
        ...
    @property
    def offset(self) -> int:
        ...
    @property
    def shape(self) -> list[int]:
        ...
    @property
    def strides(self) -> list[int]:
        ...
class SliceList:
    """
    What one rank writes of tensors.
    """
    def __init__(self, rank: typing.SupportsInt, world_size: typing.SupportsInt) -> None:
        ...
    def add_own(self, key: str, tensor: torch.Tensor) -> None:
        """
        A whole tensor that this rank alone writes.
        """
    def add_part(self, key: str, parameter: torch.Tensor, offset: typing.SupportsInt, elements: torch.Tensor) -> None:
        """
        Elements of what has the shape of a parameter, in the order of its memory.
        """
    def add_shared(self, key: str, tensor: torch.Tensor) -> None:
        """
        Of a tensor that is the same on all ranks, which all of them add.
        """
    def new_key(self, wanted: str) -> str:
        """
        One that no other tensor has, the same on all ranks.
        """
    @property
    def common(self) -> str:
        """
        What all ranks must have alike but for values.
        """
    @property
    def own(self) -> list[TensorSlice]:
        ...
    @property
    def rank(self) -> int:
        ...
class PendingCheckpoint:
    """
    A save that may be under way.
    """
    def wait(self) -> str:
        """
        The folder when it is on the disk. Local.
        """
    @property
    def is_done(self) -> bool:
        ...
class CheckpointWriter:
    """
    Saves checkpoints of all ranks of a group into one folder.
    """
    def __init__(self, folder: str, process_group: torch.distributed.distributed_c10d.ProcessGroup) -> None:
        ...
    def agree(self, call: str, error: str) -> None:
        """
        Raises CheckpointError on all ranks if one has an error. Collective.
        """
    def all_gather(self, text: str) -> list[str]:
        """
        A text of every rank. Collective.
        """
    def save(self, slices: SliceList, values: str, name: str, keep: typing.SupportsInt, asynchronous: bool) -> PendingCheckpoint:
        """
        Saves slices of this rank. Collective.
        """
    def wait(self) -> None:
        """
        Returns when the last save is done.
        """
    @property
    def rank(self) -> int:
        ...
    @property
    def world_size(self) -> int:
        ...
class CheckpointEntry:
    """
    A tensor of a checkpoint.
    """
    @property
    def dtype(self) -> torch.dtype:
        ...
    @property
    def shape(self) -> list[int]:
        ...
    @property
    def strides(self) -> list[int]:
        ...
class CheckpointReader:
    """
    Reads any elements of any tensor of a checkpoint.
    """
    def __init__(self, path: str) -> None:
        ...
    def check(self, key: str, offset: typing.SupportsInt, elements: typing.SupportsInt) -> None:
        """
        Compare what read_into() will read with its checksums.
        """
    def check_share(self, key: str, rank: typing.SupportsInt, world_size: typing.SupportsInt) -> None:
        """
        A rank's share of a whole tensor that all ranks will read.
        """
    def read(self, key: str, offset: typing.SupportsInt, elements: typing.SupportsInt) -> torch.Tensor:
        """
        Elements of a tensor, in one dimension.
        """
    def read_into(self, key: str, offset: typing.SupportsInt, into: torch.Tensor) -> None:
        """
        As read(), into the memory of a tensor of one dimension.
        """
    def read_whole(self, key: str) -> torch.Tensor:
        """
        A whole tensor.
        """
    def read_whole_into(self, key: str, into: torch.Tensor) -> None:
        """
        A whole tensor, into one of its shape.
        """
    @property
    def entries(self) -> dict[str, CheckpointEntry]:
        ...
    @property
    def folder(self) -> str:
        ...
    @property
    def values(self) -> str:
        ...
    @property
    def world_size(self) -> int:
        ...
class OpenAnnotation:
    """
    A range of the program.
    """
    def __init__(self, name: str) -> None:
        """
        Begin.
        """
    def end(self) -> None:
        """
        End; on the same thread.
        """
def abort(group: torch.distributed.distributed_c10d.ProcessGroup) -> None:
    """
    Fail every collective of the group, here and on its peers.
    """
def adam_rule(lr: typing.SupportsFloat = 0.001, beta1: typing.SupportsFloat = 0.9, beta2: typing.SupportsFloat = 0.999, eps: typing.SupportsFloat = 1e-08, weight_decay: typing.SupportsFloat = 0.0, amsgrad: bool = False, maximize: bool = False, decoupled_weight_decay: bool = False) -> UpdateRule:
    """
    That of torch.optim.Adam; of AdamW with decoupled_weight_decay.
    """
def address_of_this_host() -> str:
    """
    Where other hosts reach this one: FARANDOLE_NETWORK_INTERFACE, or a guess.
    """
def all_gather(output: torch.Tensor, input: torch.Tensor, group: torch.distributed.distributed_c10d.ProcessGroup, async_op: bool) -> torch.distributed.distributed_c10d.Work:
    """
    Fill ``output`` with the ranks' inputs in rank order.
    """
def all_reduce(tensor: torch.Tensor, op: torch.distributed.distributed_c10d.ReduceOp, group: torch.distributed.distributed_c10d.ProcessGroup, async_op: bool) -> torch.distributed.distributed_c10d.Work:
    """
    Reduce ``tensor`` in place over the ranks.
    """
def all_to_all(output: torch.Tensor, input: torch.Tensor, output_splits: collections.abc.Sequence[typing.SupportsInt], input_splits: collections.abc.Sequence[typing.SupportsInt], group: torch.distributed.distributed_c10d.ProcessGroup, async_op: bool) -> torch.distributed.distributed_c10d.Work:
    """
    Fill part p of ``output`` with this rank's part of rank p's ``input``.
    """
def backends() -> list[BackendInfo]:
    """
    All backends that Farandole knows, built or not.
    """
def barrier(group: torch.distributed.distributed_c10d.ProcessGroup, async_op: bool) -> torch.distributed.distributed_c10d.Work:
    """
    Return when every rank has entered.
    """
def broadcast(tensor: torch.Tensor, root: typing.SupportsInt, group: torch.distributed.distributed_c10d.ProcessGroup, async_op: bool) -> torch.distributed.distributed_c10d.Work:
    """
    Fill ``tensor`` with that of ``root``.
    """
def check_apart(key: str, tensor: torch.Tensor) -> None:
    """
    Raises InvalidArgument if elements share memory.
    """
def check_tensor(key: str, tensor: torch.Tensor) -> None:
    """
    Raises InvalidArgument unless a tensor has elements, all of them and here.
    """
def emit_garbage(generation: typing.SupportsInt, begin_ns: typing.SupportsInt) -> None:
    """
    Python's collector has ended.
    """
def end_step(mode: str) -> None:
    """
    The program ends a step.
    """
def find_launch() -> Launch:
    """
    Read the launcher's variables; raise InvalidArgument if they are set in part.
    """
def gather(output: torch.Tensor | None, input: torch.Tensor, root: typing.SupportsInt, group: torch.distributed.distributed_c10d.ProcessGroup, async_op: bool) -> torch.distributed.distributed_c10d.Work:
    """
    As all_gather, on ``root`` alone.
    """
def go_alone() -> None:
    """
    Tell the user that this process runs alone.
    """
def is_recording() -> bool:
    """
    Whether this process does.
    """
def lamb_rule(lr: typing.SupportsFloat = 0.001, beta1: typing.SupportsFloat = 0.9, beta2: typing.SupportsFloat = 0.999, eps: typing.SupportsFloat = 1e-06, weight_decay: typing.SupportsFloat = 0.01, bias_correction: bool = True, maximize: bool = False) -> UpdateRule:
    """
    That of LAMB.
    """
def lars_rule(lr: typing.SupportsFloat, momentum: typing.SupportsFloat = 0.9, dampening: typing.SupportsFloat = 0.0, weight_decay: typing.SupportsFloat = 0.0, nesterov: bool = False, trust_coefficient: typing.SupportsFloat = 0.001, eps: typing.SupportsFloat = 1e-08, maximize: bool = False) -> UpdateRule:
    """
    That of LARS.
    """
def linear_scaled_lr(base_lr: typing.SupportsFloat, global_batch_size: typing.SupportsInt, reference_batch_size: typing.SupportsInt) -> float:
    """
    The linear scaling rule, arXiv:1706.02677.
    """
def local_rank(group: torch.distributed.distributed_c10d.ProcessGroup) -> int:
    """
    This rank among those on its host.
    """
def local_world_size(group: torch.distributed.distributed_c10d.ProcessGroup) -> int:
    """
    How many ranks are on this host.
    """
def meet(timeout: datetime.timedelta | None) -> tuple[torch.distributed.distributed_c10d.Store, int, int]:
    """
    The store, the rank and the world size that the launcher tells.
    """
def monitored_barrier(timeout: datetime.timedelta | None, wait_all_ranks: bool, group: torch.distributed.distributed_c10d.ProcessGroup) -> None:
    """
    Return when every rank has entered; name those that do not come in time.
    """
def now_ns() -> int:
    """
    The clock of spans.
    """
def obstacle_to(backend: str) -> str:
    """
    Why this process cannot use a backend, a sentence; empty if nothing is known to be against it. Opens the libraries that the backend needs.
    """
def rank(group: torch.distributed.distributed_c10d.ProcessGroup) -> int:
    """
    The rank of this process in the group.
    """
def recent_events(limit: typing.SupportsInt = 16) -> list[Event]:
    """
    The newest collectives of all threads of this process, oldest first.
    """
def recv(tensor: torch.Tensor, source: typing.SupportsInt | None, tag: typing.SupportsInt, group: torch.distributed.distributed_c10d.ProcessGroup, async_op: bool) -> torch.distributed.distributed_c10d.Work:
    """
    Fill ``tensor`` with a message from rank ``source``; from any rank if None.
    """
def reduce(tensor: torch.Tensor, root: typing.SupportsInt, op: torch.distributed.distributed_c10d.ReduceOp, group: torch.distributed.distributed_c10d.ProcessGroup, async_op: bool) -> torch.distributed.distributed_c10d.Work:
    """
    Reduce over the ranks into the ``tensor`` of ``root``.
    """
def reduce_scatter(output: torch.Tensor, input: torch.Tensor, op: torch.distributed.distributed_c10d.ReduceOp, group: torch.distributed.distributed_c10d.ProcessGroup, async_op: bool) -> torch.distributed.distributed_c10d.Work:
    """
    Fill ``output`` with this rank's part of the reduction of ``input``.
    """
def remove_after_success(file: str, folder: str) -> None:
    """
    Remove a file, and its folder if that is empty then, when this process ends with status 0.
    """
def scatter(output: torch.Tensor, input: torch.Tensor | None, root: typing.SupportsInt, group: torch.distributed.distributed_c10d.ProcessGroup, async_op: bool) -> torch.distributed.distributed_c10d.Work:
    """
    Fill ``output`` with this rank's part of root's ``input``.
    """
def send(tensor: torch.Tensor, destination: typing.SupportsInt, tag: typing.SupportsInt, group: torch.distributed.distributed_c10d.ProcessGroup, async_op: bool) -> torch.distributed.distributed_c10d.Work:
    """
    Send ``tensor`` to rank ``destination``.
    """
def sgd_rule(lr: typing.SupportsFloat, momentum: typing.SupportsFloat = 0.0, dampening: typing.SupportsFloat = 0.0, weight_decay: typing.SupportsFloat = 0.0, nesterov: bool = False, maximize: bool = False) -> UpdateRule:
    """
    That of torch.optim.SGD.
    """
def shut_down_all_groups() -> None:
    """
    Shut every group of this process down.
    """
def source_rank(work: torch.distributed.distributed_c10d.Work) -> int:
    """
    The rank at the other side of a send or receive.
    """
def start_recording(folder: str, group: torch.distributed.distributed_c10d.ProcessGroup | None, max_file_bytes: typing.SupportsInt, max_file_seconds: typing.SupportsFloat, first_step: typing.SupportsInt | None) -> None:
    """
    Write what this rank's threads do to files.
    """
def stop_recording() -> None:
    """
    Write the rest.
    """
def symmetric_empty(sizes: collections.abc.Sequence[typing.SupportsInt], dtype: torch.dtype, group: torch.distributed.distributed_c10d.ProcessGroup) -> torch.Tensor:
    """
    A tensor in memory that all ranks map.
    """
def sync_batch_norm(input: torch.Tensor, weight: torch.Tensor | None, bias: torch.Tensor | None, eps: typing.SupportsFloat, group: torch.distributed.distributed_c10d.ProcessGroup, pass_weight: PassWeight | None) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """
    A normalized batch of all ranks: output, mean, variance, count. Collective.
    """
def update_parameters(rule: UpdateRule, parameters: collections.abc.Sequence[torch.Tensor], gradients: collections.abc.Sequence[torch.Tensor], states: collections.abc.Sequence[collections.abc.Sequence[torch.Tensor]], steps: collections.abc.Sequence[typing.SupportsInt]) -> None:
    """
    One step in one process, in place.
    """
def watch_data_loaders(code: typing.Any) -> None:
    """
    Record how many workers a DataLoader has, whose __next__ has this code.
    """
def world_size(group: torch.distributed.distributed_c10d.ProcessGroup) -> int:
    """
    How many ranks the group has.
    """
torch_version_built: str = '2.11.0'
version: str = '0.1.0'
