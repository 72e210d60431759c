# SPDX-License-Identifier: Apache-2.0
"""Where the time of a training goes: what hardware and ranks did, and rules that judge it."""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

from farandole.profiler.annotations import annotate, annotation_begin, annotation_end
from farandole.profiler.monitor import SystemMonitor
from farandole.profiler.operators import Operator, top_operators
from farandole.profiler.recording import is_recording, start, step, stop

if TYPE_CHECKING:
    from farandole.profiler.chrome_trace import export_chrome_trace
    from farandole.profiler.growing_files import Problem
    from farandole.profiler.profile import Profile
    from farandole.profiler.rules.batch_size import BatchSize
    from farandole.profiler.rules.cpu_bottleneck import CPUBottleneck
    from farandole.profiler.rules.dataloader import Dataloader
    from farandole.profiler.rules.exposed_communication import ExposedCommunication
    from farandole.profiler.rules.garbage_collection import GarbageCollection
    from farandole.profiler.rules.gpu_memory_increase import GPUMemoryIncrease
    from farandole.profiler.rules.host_cpu_oversubscribed import HostCpuOversubscribed
    from farandole.profiler.rules.host_memory_leak import HostMemoryLeak
    from farandole.profiler.rules.io_bottleneck import IOBottleneck
    from farandole.profiler.rules.load_balancing import LoadBalancing
    from farandole.profiler.rules.low_gpu_utilization import LowGPUUtilization
    from farandole.profiler.rules.max_initialization_time import MaxInitializationTime
    from farandole.profiler.rules.overall_system_usage import OverallSystemUsage
    from farandole.profiler.rules.profiler_report import ProfilerReport
    from farandole.profiler.rules.rule import ProfilerRule, RuleReport
    from farandole.profiler.rules.rule_watch import RuleWatch
    from farandole.profiler.rules.step_outlier import StepOutlier
    from farandole.profiler.rules.straggler import Straggler
    from farandole.profiler.rules.uneven_shards import UnevenShards
    from farandole.profiler.spans import Span

__all__ = [
    "BatchSize",
    "CPUBottleneck",
    "Dataloader",
    "ExposedCommunication",
    "GPUMemoryIncrease",
    "GarbageCollection",
    "HostCpuOversubscribed",
    "HostMemoryLeak",
    "IOBottleneck",
    "LoadBalancing",
    "LowGPUUtilization",
    "MaxInitializationTime",
    "Operator",
    "OverallSystemUsage",
    "Problem",
    "Profile",
    "ProfilerReport",
    "ProfilerRule",
    "RuleReport",
    "RuleWatch",
    "Span",
    "StepOutlier",
    "Straggler",
    "SystemMonitor",
    "UnevenShards",
    "annotate",
    "annotation_begin",
    "annotation_end",
    "export_chrome_trace",
    "is_recording",
    "start",
    "step",
    "stop",
    "top_operators",
]

_READERS = {
    "export_chrome_trace": "chrome_trace",
    "Problem": "growing_files",
    "Profile": "profile",
    "Span": "spans",
    "ProfilerRule": "rules.rule",
    "RuleReport": "rules.rule",
    "RuleWatch": "rules.rule_watch",
    "BatchSize": "rules.batch_size",
    "CPUBottleneck": "rules.cpu_bottleneck",
    "Dataloader": "rules.dataloader",
    "ExposedCommunication": "rules.exposed_communication",
    "GPUMemoryIncrease": "rules.gpu_memory_increase",
    "GarbageCollection": "rules.garbage_collection",
    "HostCpuOversubscribed": "rules.host_cpu_oversubscribed",
    "HostMemoryLeak": "rules.host_memory_leak",
    "IOBottleneck": "rules.io_bottleneck",
    "LoadBalancing": "rules.load_balancing",
    "LowGPUUtilization": "rules.low_gpu_utilization",
    "MaxInitializationTime": "rules.max_initialization_time",
    "OverallSystemUsage": "rules.overall_system_usage",
    "ProfilerReport": "rules.profiler_report",
    "StepOutlier": "rules.step_outlier",
    "Straggler": "rules.straggler",
    "UnevenShards": "rules.uneven_shards",
}
"""Modules of what reads a recording: with numpy, which a training need not have."""


def __getattr__(name: str) -> Any:
    """What is needed after a training, or beside it."""
    if name in _READERS:
        module = importlib.import_module(f"farandole.profiler.{_READERS[name]}")
        return getattr(module, name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """With these, for completion."""
    return sorted({*globals(), *__all__})
