# SPDX-License-Identifier: Apache-2.0
"""Where the time of a training goes: what hardware and ranks did, and rules that judge it."""

from __future__ import annotations

from farandole.profiler.growing_files import Problem
from farandole.profiler.monitor import SystemMonitor
from farandole.profiler.profile import Profile
from farandole.profiler.rules.batch_size import BatchSize
from farandole.profiler.rules.cpu_bottleneck import CPUBottleneck
from farandole.profiler.rules.dataloader import Dataloader
from farandole.profiler.rules.exposed_communication import ExposedCommunication
from farandole.profiler.rules.gpu_memory_increase import GPUMemoryIncrease
from farandole.profiler.rules.host_cpu_oversubscribed import HostCpuOversubscribed
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
from farandole.profiler.timeline import Span

__all__ = [
    "BatchSize",
    "CPUBottleneck",
    "Dataloader",
    "ExposedCommunication",
    "GPUMemoryIncrease",
    "HostCpuOversubscribed",
    "IOBottleneck",
    "LoadBalancing",
    "LowGPUUtilization",
    "MaxInitializationTime",
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
]
