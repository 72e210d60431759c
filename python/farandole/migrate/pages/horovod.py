# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/horovod.md."""

from __future__ import annotations

from farandole.migrate.rows import Difference, Refusal, Variable

VARIABLES = (
    Variable(
        "HOROVOD_CYCLE_TIME",
        ("HOROVOD_CYCLE_TIME",),
        "ms for which requests are collected before a round that nobody waits for; 1",
    ),
    Variable(
        "HOROVOD_FUSION_THRESHOLD",
        ("HOROVOD_FUSION_THRESHOLD",),
        "bytes of a call that small tensors share; 128 MiB. Tensors above 256 KiB travel alone",
    ),
    Variable(
        "HOROVOD_CACHE_CAPACITY",
        ("HOROVOD_CACHE_CAPACITY",),
        "names that ranks remember; 1024",
    ),
    Variable(
        "HOROVOD_STALL_CHECK_TIME_SECONDS",
        ("HOROVOD_STALL_CHECK_TIME_SECONDS",),
        "after which a warning names what waits, and for which ranks; 60",
    ),
    Variable(
        "HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",
        ("HOROVOD_STALL_SHUTDOWN_TIME_SECONDS",),
        "after which that is an error; 0: never",
    ),
    Variable(
        "HOROVOD_STALL_CHECK_DISABLE",
        ("HOROVOD_STALL_CHECK_DISABLE",),
        "1: no warning",
    ),
)

DIFFERENCES = (
    Difference(
        "averages of half types",
        ("horovod.torch.*(compression=fp16)",),
        "added in the half type",
        "added in float32, rounded once",
    ),
    Difference(
        "`broadcast_optimizer_state()`",
        ("horovod.torch.broadcast_optimizer_state",),
        "makes a first step with zero gradients where there is no state",
        "sends the state as it is: gradients stay None and steps are not counted",
    ),
    Difference(
        "`DistributedOptimizer(optimizer)`",
        (),
        "begins with an empty state",
        "goes on with the state of `optimizer`",
    ),
    Difference(
        "`gradient_predivide_factor` with groups",
        ("horovod.torch.DistributedOptimizer(gradient_predivide_factor)",),
        "is left out",
        "is applied",
    ),
    Difference(
        "names of objects",
        ("horovod.torch.broadcast_object", "horovod.torch.allgather_object"),
        "the type of each rank's object",
        "one name, so `broadcast_object(None)` works on other ranks",
    ),
    Difference(
        "names of what has none",
        ("horovod.torch.join",),
        "count handles",
        "count what has no name, and begin anew after a `join()`",
    ),
    Difference("in-place tensors", (), "contiguous", "of any strides"),
    Difference(
        "who averages",
        (),
        "each gradient alone, or fused in a buffer",
        "small gradients in one call, others where they are",
    ),
    Difference("a rank that ends", (), "stalls the others", "is an error on the others, at once"),
    Difference(
        "HOROVOD_AUTOTUNE_* and other HOROVOD_* variables",
        (
            *("HOROVOD_AUTOTUNE_*", "HOROVOD_HIERARCHICAL_*", "HOROVOD_TORUS_ALLREDUCE"),
            *("HOROVOD_BATCH_D2D_MEMCOPIES", "HOROVOD_NUM_NCCL_STREAMS", "HOROVOD_CPU_OPERATIONS"),
            *("HOROVOD_CONTROLLER", "HOROVOD_THREAD_AFFINITY", "HOROVOD_DISABLE_GROUP_FUSION"),
            *("HOROVOD_ENABLE_ASYNC_COMPLETION", "HOROVOD_DYNAMIC_PROCESS_SETS"),
            *("HOROVOD_ADASUM_MPI_CHUNK_SIZE", "HOROVOD_ELASTIC", "HOROVOD_GLOO_*"),
            *("HOROVOD_MPI_*", "HOROVOD_LOG_*", "HOROVOD_GPU_*", "HOROVOD_WITH*"),
            *("HOROVOD_NCCL_*", "HOROVOD_TIMELINE_MARK_CYCLES"),
        ),
        "choose between ways of Horovod",
        "have no effect",
    ),
)

REFUSALS = (
    Refusal(
        "`hvd.init(comm)` with some of the ranks",
        ("horovod.torch.init(comm)",),
        "all ranks of the launcher take part",
        "process sets",
        always=False,
    ),
    Refusal(
        "reducescatter with other ops than Sum and Average",
        tuple(
            f"horovod.torch.*reducescatter*(op={op})" for op in ("Min", "Max", "Product", "Adasum")
        ),
        "Horovod's has no others",
        "`farandole.reduce_scatter()`",
    ),
    Refusal(
        "Adasum of 3, 5, 6, ... ranks, or of integers",
        ("horovod.torch.Adasum",),
        "ranks form pairs",
        "Average",
        always=False,
    ),
    Refusal(
        "LBFGS in `broadcast_optimizer_state()`",
        (),
        "as in Horovod",
        "broadcast parameters first",
    ),
    Refusal(
        "`hvd.elastic`",
        ("horovod.torch.elastic",),
        "not there yet",
        "`torchrun --max-restarts` with `farandole.resume_or_start()`",
    ),
    Refusal(
        "`horovod.run()`, horovodrun",
        ("horovod.run", "horovod.runner", "horovodrun"),
        "not there yet",
        "`farandole run -n 4 train.py`",
    ),
    Refusal(
        "`horovod.spark`, `sparkdl`",
        ("horovod.spark", "sparkdl"),
        "not there yet",
        "torchrun or `farandole run` on the hosts",
    ),
    Refusal(
        "`horovod.ray`",
        ("horovod.ray",),
        "no launcher of Ray",
        "torchrun or `farandole run` on the hosts",
    ),
    Refusal(
        "`start_timeline()`, `stop_timeline()`, HOROVOD_TIMELINE",
        ("horovod.torch.start_timeline", "horovod.torch.stop_timeline", "HOROVOD_TIMELINE"),
        "not there yet",
        "[farandole.profiler](profiler.md)",
    ),
    Refusal("HOROVOD_AUTOTUNE", ("HOROVOD_AUTOTUNE",), "nothing to tune", "leave it out"),
    Refusal(
        "`horovod.tensorflow`, `keras`, `mxnet`",
        ("horovod.tensorflow", "horovod.keras", "horovod.mxnet", "horovod._keras"),
        "other frameworks",
        "train with torch",
    ),
)

ROWS = (*VARIABLES, *DIFFERENCES, *REFUSALS)
