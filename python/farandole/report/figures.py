# SPDX-License-Identifier: Apache-2.0
"""All that a report shows, as plain values."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from farandole.profiler.job_summary import job_summary, job_times
from farandole.profiler.profile import Profile
from farandole.profiler.rules.profiler_report import ProfilerReport
from farandole.profiler.rules.rule import RuleReport
from farandole.report.breakdown import breakdown_of
from farandole.report.gaps import missing_from, unread_of
from farandole.report.hardware import hardware_of
from farandole.report.lateness import lateness_of
from farandole.report.named_spans import by_name, collectives_of, data_loading_of
from farandole.report.step_times import step_times_of
from farandole.report.time_columns import columns_of
from farandole.report.utilization import utilization_of

Figures = dict[str, Any]
"""What `farandole report --json` writes; docs/report.md names the keys."""


def figures_of(profile: Profile, more_reports: Iterable[RuleReport] = ()) -> Figures:
    """Of a profile; ``more_reports`` are those of rules that judge something else."""
    reports = [*ProfilerReport().reports(profile), *more_reports]
    reports.sort(key=lambda report: (not report.fired, not report.has_data))
    columns = columns_of(job_times(profile), _interval_s(profile))
    return {
        "version": 1,
        "folder": str(profile.path),
        "job": job_summary(profile),
        "missing": missing_from(profile),
        "unread": unread_of(profile),
        "rules": [report.to_json() for report in reports],
        "ranks": [
            {
                "rank": rank.rank,
                "node": rank.node,
                "host": rank.host,
                "clock_error_us": rank.clock_error_us,
                "lost_events": rank.lost_events,
            }
            for rank in profile.timeline.ranks()
        ],
        "steps": breakdown_of(profile),
        "step_times": step_times_of(profile),
        "columns": columns.to_json(),
        "hardware": hardware_of(profile, columns),
        "utilization": utilization_of(profile),
        "stragglers": lateness_of(profile),
        "data_loading": data_loading_of(profile),
        "collectives": collectives_of(profile),
        "annotations": by_name(profile, "annotation"),
        "checkpoints": by_name(profile, "checkpoint"),
    }


def _interval_s(profile: Profile) -> float:
    """Between two values of a metric: the largest median."""
    times_s = [profile.metrics.series(each).times for each in profile.metrics.metrics()]
    return max((float(np.median(np.diff(each))) for each in times_s if len(each) > 1), default=1.0)
