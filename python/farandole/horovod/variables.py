# SPDX-License-Identifier: Apache-2.0
"""Horovod's environment variables: what they set, and which mean nothing here."""

from __future__ import annotations

import difflib
import logging
import os
from collections.abc import Mapping

from farandole import logs
from farandole.errors import InvalidArgument, sentences
from farandole.named import Settings

_PREFIX = "HOROVOD_"
_WITH_EFFECT = (
    *(
        "CYCLE_TIME",
        "FUSION_THRESHOLD",
        "CACHE_CAPACITY",
        "THREAD_AFFINITY",
        "DYNAMIC_PROCESS_SETS",
    ),
    *("STALL_CHECK_DISABLE", "STALL_CHECK_TIME_SECONDS", "STALL_SHUTDOWN_TIME_SECONDS"),
    *("TIMELINE", "TIMELINE_MARK_CYCLES", "LOG_LEVEL", "START_TIMEOUT", "GLOO_IFACE"),
    *("ELASTIC", "ELASTIC_TIMEOUT", "SPARK_START_TIMEOUT"),
    # Of launchers, for scripts.
    *("RANK", "SIZE", "LOCAL_RANK", "LOCAL_SIZE", "CROSS_RANK", "CROSS_SIZE", "HOSTNAME"),
)
_NOTHING_TO_TUNE = "there is nothing to tune"
_ONE_WAY = "between two hosts each byte crosses once in any case"
_NO_GLOO = "nothing goes through gloo"
_OF_THE_BUILD = "it is read when Horovod is built"
_WITHOUT_EFFECT = {
    "AUTOTUNE": _NOTHING_TO_TUNE,
    "AUTOTUNE_LOG": _NOTHING_TO_TUNE,
    "AUTOTUNE_WARMUP_SAMPLES": _NOTHING_TO_TUNE,
    "AUTOTUNE_STEPS_PER_SAMPLE": _NOTHING_TO_TUNE,
    "AUTOTUNE_BAYES_OPT_MAX_SAMPLES": _NOTHING_TO_TUNE,
    "AUTOTUNE_GAUSSIAN_PROCESS_NOISE": _NOTHING_TO_TUNE,
    "HIERARCHICAL_ALLREDUCE": _ONE_WAY,
    "HIERARCHICAL_ALLGATHER": _ONE_WAY,
    "TORUS_ALLREDUCE": _ONE_WAY,
    "CONTROLLER": "ranks agree over Farandole itself",
    "CPU_OPERATIONS": "set FARANDOLE_BACKEND=mpi for MPI's collectives",
    "MPI_THREADS_DISABLE": "MPI, where it is used, is called by one thread at a time",
    "ADASUM_MPI_CHUNK_SIZE": "Adasum sends whole tensors",
    "BATCH_D2D_MEMCOPIES": "a call on several tensors copies them at once in any case",
    "NUM_NCCL_STREAMS": "a group has one stream",
    "ENABLE_ASYNC_COMPLETION": "operations on accelerators are asynchronous in any case",
    "DISABLE_GROUP_FUSION": "set HOROVOD_FUSION_THRESHOLD=0 to send each tensor alone",
    "DISABLE_NVTX_RANGES": "farandole.profiler records what ranks do",
    "ENABLE_XLA_OPS": "Farandole has no TensorFlow",
    "CCL_CACHE": "nothing goes through oneCCL",
    "CCL_BGT_AFFINITY": "set HOROVOD_THREAD_AFFINITY",
    "GLOO_TIMEOUT_SECONDS": f"{_NO_GLOO}; set FARANDOLE_TIMEOUT_S",
    "GLOO_RENDEZVOUS_ADDR": f"{_NO_GLOO}; ranks meet where their launcher says",
    "GLOO_RENDEZVOUS_PORT": f"{_NO_GLOO}; ranks meet where their launcher says",
    "SECRET_KEY": "ranks meet where their launcher says",
    "LOG_HIDE_TIME": "a log line has the form of Python's logging, which the script sets",
    "LOG_TIMESTAMP": "a log line has the form of Python's logging, which the script sets",
    "SPARK_PYTHONPATH": "executors of Spark have the paths of Spark",
    "SPARK_WORK_DIR": "executors of Spark have the folder of Spark",
    "SPARK_USE_LOCAL_RANK_GPU_INDEX": "use hvd.local_rank() as the index",
    **dict.fromkeys(
        (
            *("GPU", "GPU_OPERATIONS", "GPU_ALLREDUCE", "GPU_ALLGATHER", "GPU_BROADCAST"),
            *("GPU_ALLTOALL", "GPU_REDUCESCATTER", "ALLOW_MIXED_GPU_IMPL", "BUILD_ARCH_FLAGS"),
            *("BUILD_CUDA_CC_LIST", "CUDA_HOME", "CUDA_INCLUDE", "CUDA_LIB", "ROCM_HOME"),
            *("NCCL_HOME", "NCCL_INCLUDE", "NCCL_LIB", "NCCL_LINK", "NVTX_INCLUDE", "CMAKE"),
            *("MPICXX_SHOW", "CPU_OPERATIONS_DEFAULT", "CONTROLLER_DEFAULT", "DEBUG"),
            *("SKIP_COMPILE", "LOCAL_VERSION"),
            *(
                f"{has}_{what}"
                for has in ("WITH", "WITHOUT")
                for what in ("TENSORFLOW", "PYTORCH", "MXNET", "MPI", "GLOO", "NVTX")
            ),
        ),
        _OF_THE_BUILD,
    ),
}
_LEVELS = {
    "trace": "debug",
    "debug": "debug",
    "info": "info",
    "warning": "warning",
    "error": "error",
    "fatal": "error",
}


def settings_of(variables: Mapping[str, str]) -> Settings:
    """How operations wait and are joined; the core of core_of() is not in it.

    Raises:
        InvalidArgument: one has a value that it does not take.
    """
    plain = Settings()
    checks_stalls = not is_on(variables, "STALL_CHECK_DISABLE")
    warning_s = _number(variables, "STALL_CHECK_TIME_SECONDS", plain.stall_warning_s)
    shutdown_s = _number(variables, "STALL_SHUTDOWN_TIME_SECONDS", plain.stall_shutdown_s)
    return Settings(
        cycle_s=_number(variables, "CYCLE_TIME", plain.cycle_s * 1000) / 1000,
        fusion_bytes=int(_number(variables, "FUSION_THRESHOLD", plain.fusion_bytes)),
        capacity=int(_number(variables, "CACHE_CAPACITY", plain.capacity)),
        stall_warning_s=warning_s if checks_stalls else 0.0,
        stall_shutdown_s=shutdown_s if checks_stalls else 0.0,
    )


def core_of(variables: Mapping[str, str], local_rank: int, local_size: int) -> int:
    """HOROVOD_THREAD_AFFINITY, which is set: the core of the thread that runs operations.

    It is one number for all ranks of a host, or one for each, with commas.

    Raises:
        InvalidArgument: it has another form, or this process may not use that core.
    """
    text = variables["HOROVOD_THREAD_AFFINITY"]
    cores = text.split(",")
    usable = sorted(os.sched_getaffinity(0))
    own = (
        cores[local_rank if len(cores) > 1 else 0].strip() if len(cores) in (1, local_size) else ""
    )
    if own.isascii() and own.isdigit() and int(own) in usable:
        return int(own)
    raise InvalidArgument(
        sentences(
            "horovod-affinity",
            f"HOROVOD_THREAD_AFFINITY is '{text}'.",
            f"it takes one core, or one for each of the {local_size} ranks of a host, with commas; "
            f"local rank {local_rank} may use the cores {usable}.",
            "name such cores, or unset it. `farandole run --no-bind` lets ranks use all cores.",
        )
    )


def start_timeout_of(variables: Mapping[str, str]) -> float | None:
    """HOROVOD_START_TIMEOUT: seconds for which ranks wait for each other in hvd.init()."""
    return _number(variables, "START_TIMEOUT", 0.0) or None


def spark_start_timeout_of(variables: Mapping[str, str]) -> float:
    """HOROVOD_SPARK_START_TIMEOUT: seconds for which ranks of Spark may take to start; 600."""
    return _number(variables, "SPARK_START_TIMEOUT", 600.0)


def take_over(variables: Mapping[str, str]) -> None:
    """Set the variables of Farandole that mean the same, unless they are set.

    Raises:
        InvalidArgument: HOROVOD_LOG_LEVEL has a level that is none.
    """
    if interfaces := variables.get("HOROVOD_GLOO_IFACE"):
        os.environ.setdefault("FARANDOLE_NETWORK_INTERFACE", interfaces)
    level = variables.get("HOROVOD_LOG_LEVEL", "").lower()
    if not level or "FARANDOLE_LOG" in os.environ:
        return
    if level not in _LEVELS:
        raise InvalidArgument(
            sentences(
                "horovod-log-level",
                f"HOROVOD_LOG_LEVEL is '{level}'.",
                f"it takes {', '.join(_LEVELS)}.",
                "set one of these, or FARANDOLE_LOG.",
            )
        )
    os.environ["FARANDOLE_LOG"] = _LEVELS[level]
    logs.LOGGER.setLevel(logging.getLevelName(_LEVELS[level].upper()))


def told(variables: Mapping[str, str]) -> str:
    """Of variables that mean nothing here, or that Horovod does not have; "" if there are none."""
    lines = []
    for name in sorted(variables):
        short = name.removeprefix(_PREFIX)
        if not name.startswith(_PREFIX) or short in _WITH_EFFECT:
            continue
        if short in _WITHOUT_EFFECT:
            if is_on(variables, short):
                lines.append(f"{name} has no effect: {_WITHOUT_EFFECT[short]}")
            continue
        known = (*_WITH_EFFECT, *_WITHOUT_EFFECT)
        near = difflib.get_close_matches(short, known, n=1)
        hint = f"; did you mean {_PREFIX}{near[0]}?" if near else ""
        lines.append(f"{name} is no variable of Horovod 0.28{hint}")
    return ". ".join(lines)


def is_on(variables: Mapping[str, str], name: str) -> bool:
    """Whether HOROVOD_<name> is set to something else than 0."""
    return variables.get(f"{_PREFIX}{name}", "0") not in ("", "0")


def _number(variables: Mapping[str, str], name: str, default: float) -> float:
    text = variables.get(f"{_PREFIX}{name}", "")
    try:
        number = float(text) if text else default
    except ValueError:
        number = -1.0
    if not 0 <= number < float("inf"):
        raise InvalidArgument(
            sentences(
                "horovod-variable",
                f"{_PREFIX}{name} is '{text}'.",
                "it takes a number that is not negative.",
                "set such a number, the same on all ranks.",
            )
        )
    return number
