# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/horovod.md."""

from __future__ import annotations

from farandole.migrate.rows import Difference, Refusal

_SPARK_PARTS = ("common", "keras", "lightning", "task", "torch")

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
        tuple(
            f"horovod.torch.DistributedOptimizer(gradient_predivide_factor) with {other}"
            for other in ("groups", "num_groups")
        ),
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
        "buckets of gradients, where they are",
    ),
    Difference(
        "parameters that are unfrozen, or added by `add_param_group()`",
        (),
        "their gradients stay on their rank",
        "are averaged, if all ranks do it",
    ),
    Difference(
        "a parameter that is frozen later",
        (),
        "gets zeros, so momentum and decay move it",
        "is left out, as in one process, if it has no gradient",
    ),
    Difference(
        "`optimizer.step(closure)`",
        (),
        "averages the gradients of before, not those that the closure computes",
        "averages each time behind the closure, of LBFGS also the loss",
    ),
    Difference("a rank that ends", (), "stalls the others", "is an error on the others, at once"),
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
        "LBFGS in `broadcast_optimizer_state()` (a ValueError)",
        (),
        "as in Horovod",
        "broadcast parameters first",
    ),
    Refusal(
        "averages of bools; sparse tensors, but in `sparse_allreduce_async()`",
        (),
        "bools have no average; dense tensors alone are exchanged",
        "Max; `to_dense()`",
    ),
    Refusal(
        "Min, Max, Product and Adasum of sparse tensors (a ValueError)",
        (),
        "only sums are formed of them",
        "`sparse_as_dense`, `to_dense()`",
    ),
    Refusal(
        "`horovod.run()` with `min_num_proc` or a discovery script",
        ("horovod.run(min_num_proc)", "horovod.run(host_discovery_script)", "horovod.run(min_np)"),
        "a rank that is lost has no result to give back",
        "`horovodrun --min-np 2` with a script",
    ),
    Refusal(
        "`horovod.spark.run_elastic()`",
        ("horovod.spark.run_elastic",),
        "a barrier stage has a fixed number of ranks",
        "`horovod.spark.run()` again, with `farandole.resume_or_start()` in it",
    ),
    Refusal(
        "estimators and stores of `horovod.spark`, `horovod.spark.task`",
        tuple(
            f"horovod.spark.{part}" for part in ("common", "keras", "lightning", "torch", "task")
        ),
        "they train on DataFrames",
        "write files, and read them by rank in a function for `horovod.spark.run()`",
    ),
    Refusal(
        "Lightning's `HorovodStrategy`",
        ("*lightning*.HorovodStrategy", "*lightning*.Trainer(strategy=horovod)"),
        "Lightning 2 has none",
        "its DDPStrategy over Farandole: [clients.md](clients.md)",
    ),
    Refusal(
        "`horovod.ray`",
        ("horovod.ray",),
        "no launcher of Ray",
        "torchrun or `farandole run` on the hosts",
    ),
    Refusal(
        "`horovodrun --jsrun`",
        (),  # of its own flags horovod_settings.py knows
        "one launcher: `farandole run`",
        "call jsrun itself",
    ),
    Refusal(
        "`horovod.tensorflow`, `keras`, `mxnet`",
        ("horovod.tensorflow", "horovod.keras", "horovod.mxnet", "horovod._keras"),
        "other frameworks",
        "train with torch",
    ),
)

ROWS = (*DIFFERENCES, *REFUSALS)
