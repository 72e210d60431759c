# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/smddp.md."""

from __future__ import annotations

from farandole.migrate.rows import Difference, Refusal, Variable

_V1 = "smdistributed.dataparallel.torch"
_WRAPPER = f"{_V1}.parallel*.DistributedDataParallel"

VARIABLES = (
    Variable(
        "SMDATAPARALLEL_LOCAL_RANK",
        ("SMDATAPARALLEL_LOCAL_RANK",),
        "the rank on its host; both versions set it",
    ),
)

DIFFERENCES = (
    Difference(
        "`broadcast_buffers=True`",
        (f"{_WRAPPER}(broadcast_buffers=True)",),
        "an error: buffers were never sent",
        "the default, as in torch: each forward begins with rank 0's buffers",
    ),
    Difference(
        "`process_group`",
        (f"{_WRAPPER}(process_group)",),
        "had to be None",
        "any group of torch.distributed",
    ),
    Difference(
        "`gradient_accumulation_steps=N`",
        (f"{_WRAPPER}(gradient_accumulation_steps)",),
        "up to version 1.3",
        "every Nth backward averages, and gradients are sums over the N passes; native scripts "
        "have the same argument ([DistributedDataParallel](ddp.md))",
    ),
    Difference(
        "buckets without `bucket_cap_mb`", (), "25 MiB", "1 MiB in shared memory, else 25 MiB"
    ),
    Difference(
        "a backend in version 1's `init_process_group()`",
        (f"{_V1}.distributed.init_process_group(backend)",),
        "was ignored",
        "is ignored, and the log says so: the group is one of Farandole",
    ),
    Difference(
        "`is_available()`",
        (f"{_V1}.distributed.is_available",),
        "whether the library was installed",
        "whether a launcher has started the process",
    ),
    Difference(
        "other variables SMDATAPARALLEL_* and SMDDP_*",
        ("SMDATAPARALLEL_*", "SMDDP_*"),
        "choose how it communicates",
        "have no effect; a line of the log names those that are set",
    ),
    Difference(
        "`device_ids` and `output_device` of a module on the CPU",
        (),
        "were not looked at",
        "an error, as with torch's class",
    ),
)

REFUSALS = (
    Refusal(
        "`smdistributed.modelparallel`",
        ("smdistributed.modelparallel",),
        "Farandole trains whole models on every rank",
        '[ZeroRedundancyOptimizer](zero.md), or torch\'s FSDP over the backend "farandole"',
    ),
    Refusal(
        "`smdistributed.dataparallel.tensorflow`",
        ("smdistributed.dataparallel.tensorflow",),
        "another framework",
        "train with torch",
    ),
    Refusal(
        "smddprun",
        ("smddprun",),
        "it is a program of SageMaker's containers",
        "`farandole run --from-sagemaker job.json`, or `farandole run -n 8 train.py`",
    ),
)

ROWS = (*VARIABLES, *DIFFERENCES, *REFUSALS)
