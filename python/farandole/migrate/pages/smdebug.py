# SPDX-License-Identifier: Apache-2.0
"""The tables of docs/smdebug.md."""

from __future__ import annotations

from farandole.migrate.rows import Difference, Refusal, Variable

_TRIAL = "smdebug.trials.create_trial"
_ANALYSIS = "smdebug.profiler.analysis"
_JOINED_TYPES = (
    *("InvalidWorker", "InvalidCollectionConfiguration", "MissingCollectionFiles"),
    *("InsufficientInformationForRuleInvocation", "SMDebugTypeError", "SMDebugValueError"),
    "ShapeUnavailableForStep",
)

VARIABLES = (
    Variable(
        "SMDEBUG_CONFIG_FILE_PATH",
        ("SMDEBUG_CONFIG_FILE_PATH",),
        "the file that configures a hook; else `/opt/ml/input/config/debughookconfig.json`",
    ),
    Variable(
        "SMPROFILER_CONFIG_FILE_PATH",
        ("SMPROFILER_CONFIG_FILE_PATH",),
        "the file whose `LocalPath` is the profiler's folder; else "
        "`/opt/ml/input/config/profilerconfig.json`",
    ),
)

DIFFERENCES = (
    Difference(
        "names of tensors",
        (),
        "those of the registered module",
        "those before DistributedDataParallel wraps it",
    ),
    Difference(
        "gradients",
        (),
        "of one rank",
        "`p.grad` at the end of backward: averages of all ranks",
    ),
    Difference(
        "a ReductionConfig that is left out",
        (),
        "all elements are saved",
        "all elements are saved, and reductions beside them",
    ),
    Difference(
        "a hook in a folder that exists",
        (),
        "raises an error",
        "goes on after its last step",
    ),
    Difference(
        "`sm_metric=True`",
        ("smdebug.*.save_scalar(sm_metric=True)",),
        "sends the number to SageMaker",
        "has no effect",
    ),
    Difference(
        "`save_histogram`",
        ("smdebug.*.Collection(save_histogram)",),
        "saves a histogram for TensorBoard",
        "has no effect",
    ),
    Difference(
        "types of errors",
        tuple(f"smdebug.exceptions.{name}" for name in _JOINED_TYPES),
        "one for each mistake",
        "types that have one cause here are one type",
    ),
    Difference(
        "smdebug_rulesconfig",
        ("smdebug_rulesconfig",),
        "dictionaries that a job of SageMaker is given",
        "is a package of its own, which works as it is; its dictionaries start nothing here. "
        "Make the rule by its name: `smdebug.rules.VanishingGradient(trial, threshold=1e-7)`",
    ),
    Difference(
        "BucketCount, BucketSizeMB, Compression of `config.profiler`",
        ("BucketCount", "BucketSizeMB"),
        "divide its memory",
        "have no effect; the log says so",
    ),
)

REFUSALS = (
    Refusal(
        "paths of S3",
        (f"{_TRIAL}(path=s3://*)", "smdebug.*.S3*Reader"),
        "Farandole reads folders",
        "copy it first, as by `aws s3 sync`, or mount the bucket",
    ),
    Refusal(
        "trials that smdebug itself has written",
        (),
        "its files have a format of their own",
        "read them with smdebug, or save the tensors again",
    ),
    Refusal(
        "files .smpraw",
        (),
        "their format is not published",
        "record the run again",
    ),
    Refusal(
        "`create_trial(profiler=True)`",
        (f"{_TRIAL}(profiler=True)",),
        "[rules of the profiler](profiler.md#the-rules) take a `Profile`",
        "`farandole.profiler.BatchSize().evaluate(farandole.profiler.Profile(path))`",
    ),
    Refusal(
        "the actions email and sms",
        ("smdebug.rules.*(action_str=*email*)", "smdebug.rules.*(action_str=*sms*)"),
        "Farandole sends nothing through SageMaker",
        "`farandole.debugger.Webhook(url)`",
    ),
    Refusal(
        "`Hook.record_trace_events()`",
        ("smdebug.*.record_trace_events",),
        "the recorder takes spans while they last, and none of the past",
        "`farandole.profiler.annotate(name)` around what takes the time",
    ),
    Refusal(
        "`smdebug.tensorflow`, `smdebug.mxnet`, `smdebug.xgboost`",
        ("smdebug.tensorflow", "smdebug.mxnet", "smdebug.xgboost"),
        "Farandole is for torch",
        "`smdebug.pytorch`",
    ),
    Refusal(
        "`smdebug.rules.action`",
        ("smdebug.rules.action",),
        "actions are objects of Farandole",
        "`farandole.debugger.StopTraining`, `Log` and `Webhook`",
    ),
    Refusal(
        "charts and statistics in `smdebug.profiler.analysis`",
        (
            f"{_ANALYSIS}.notebook_utils",
            f"{_ANALYSIS}.python_profile_analysis",
            f"{_ANALYSIS}.utils.pandas_data_analysis",
            f"{_ANALYSIS}.utils.pytorch_dataloader_analysis",
        ),
        "they are of notebooks and of smdebug's files",
        "[`farandole report`](report.md)",
    ),
    Refusal(
        "EnablePerf of `config.profiler`",
        ("EnablePerf",),
        "Farandole does not sample the stacks of threads",
        "perf or py-spy",
    ),
    Refusal(
        "EnableForkFollow of `config.profiler`",
        ("EnableForkFollow",),
        "forked children are not recorded",
        "`farandole.profiler.start()` in the child",
    ),
)

ROWS = (*VARIABLES, *DIFFERENCES, *REFUSALS)
