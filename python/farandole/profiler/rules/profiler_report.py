# SPDX-License-Identifier: Apache-2.0
"""All rules at once."""

from __future__ import annotations

from dataclasses import asdict, dataclass, fields
from typing import Any

from farandole.errors import InvalidArgument, sentences
from farandole.profiler.job_summary import job_summary
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
from farandole.profiler.rules.rule import ProfilerRule, RuleReport
from farandole.profiler.rules.step_outlier import StepOutlier
from farandole.profiler.rules.straggler import Straggler
from farandole.profiler.rules.uneven_shards import UnevenShards

RULES: dict[str, type[ProfilerRule]] = {
    rule.__name__: rule
    for rule in (
        HostMemoryLeak,
        Straggler,
        GarbageCollection,
        UnevenShards,
        Dataloader,
        HostCpuOversubscribed,
        CPUBottleneck,
        IOBottleneck,
        StepOutlier,
        ExposedCommunication,
        BatchSize,
        LowGPUUtilization,
        LoadBalancing,
        GPUMemoryIncrease,
        MaxInitializationTime,
        OverallSystemUsage,
    )
}
"""All but `ProfilerReport`: what ends a training, then causes before what they lead to."""


@dataclass(frozen=True, init=False)
class ProfilerReport(ProfilerRule):
    """Fires if any rule does.

    Parameters of rules have their names before them::

        ProfilerReport(CPUBottleneck_threshold=30, StepOutlier_stddev=5)
    """

    rules: tuple[ProfilerRule, ...]
    opt_out_telemetry: bool
    """SageMaker's; nothing is sent anyway."""

    def __init__(
        self,
        *,
        scan_interval_us: int = 60_000_000,
        opt_out_telemetry: bool = False,
        **parameters: Any,
    ) -> None:
        """Choose parameters of rules.

        Raises:
            InvalidArgument: there is no such rule or parameter.
        """
        chosen: dict[str, dict[str, Any]] = {name: {} for name in RULES}
        for key, value in parameters.items():
            rule, _, parameter = key.partition("_")
            if rule not in RULES or parameter not in {each.name for each in fields(RULES[rule])}:
                raise _unknown(key)
            chosen[rule][parameter] = value
        object.__setattr__(self, "scan_interval_us", scan_interval_us)
        object.__setattr__(self, "opt_out_telemetry", opt_out_telemetry)
        object.__setattr__(self, "rules", tuple(RULES[name](**chosen[name]) for name in RULES))

    def reports(self, profile: Profile) -> list[RuleReport]:
        """Of all rules; those that fired come first."""
        reports = [rule.evaluate(profile) for rule in self.rules]
        return sorted(reports, key=lambda report: not report.fired)

    def evaluate(self, profile: Profile) -> RuleReport:
        """Its figures are a summary of the job, and the reports of all rules."""
        reports = self.reports(profile)
        fired = [report for report in reports if report.fired]
        figures = {
            "job": job_summary(profile),
            "rules": [report.to_json() for report in reports],
            "unread": [problem._asdict() for problem in profile.problems()],
        }
        datapoints = max(report.datapoints for report in reports)
        if not any(report.has_data for report in reports):
            return self._no_data("there is too little in this profile for any rule.")
        if not fired:
            return self._quiet("no rule fired.", datapoints=datapoints, figures=figures)
        return self._fired(
            f"fired: {', '.join(report.rule for report in fired)}.",
            fired[0].advice,
            triggered=len(fired),
            datapoints=datapoints,
            figures=figures,
        )

    def _parameters(self) -> dict[str, Any]:
        own = {"scan_interval_us": self.scan_interval_us}
        return own | {
            f"{rule.name}_{name}": value
            for rule in self.rules
            for name, value in asdict(rule).items()
        }


def _unknown(key: str) -> InvalidArgument:
    return InvalidArgument(
        sentences(
            "profiler-rule-parameter",
            f"ProfilerReport got the parameter '{key}'.",
            "parameters are named '<rule>_<parameter>', and there is no such rule or parameter.",
            f"pass one of a rule: {', '.join(RULES)}.",
        )
    )
