# SPDX-License-Identifier: Apache-2.0
"""Rules on a run that goes on."""

from __future__ import annotations

import time
from collections.abc import Iterable

from farandole.profiler.profile import Profile
from farandole.profiler.rules.profiler_report import ProfilerReport
from farandole.profiler.rules.rule import ProfilerRule, RuleReport
from farandole.rule_actions import Action, ActionList


class RuleWatch:
    """Evaluates rules again and again, each by its ``scan_interval_us``.

    Runs in any process that sees the folder::

        watch = RuleWatch(Profile("profile"))
        while training.poll() is None:
            for report in watch.poll():
                print(report.rule, report.what, report.advice)
            time.sleep(1)

    Threads: one at a time.
    """

    def __init__(
        self,
        profile: Profile,
        rules: Iterable[ProfilerRule] | None = None,
        actions: Action | Iterable[Action] = (),
    ) -> None:
        """Watch a profile with these rules, or with all; do ``actions`` when one fires anew."""
        self._profile = profile
        self._actions = ActionList(*(actions if isinstance(actions, Iterable) else [actions]))
        self._rules = list(ProfilerReport().rules if rules is None else rules)
        self._due_s = dict.fromkeys(range(len(self._rules)), 0.0)
        self._has_fired: set[int] = set()
        self._reports: list[RuleReport] = []  # to be returned

    def poll(self, now_s: float | None = None) -> list[RuleReport]:
        """Evaluate the rules whose time has come; return the reports of those that fire anew.

        What a rule or an action of the program raises, this raises too; the next call goes on with
        the other rules and returns what this one would have.

        Args:
            now_s: Seconds of any clock that only goes forward; time.monotonic() if None.
        """
        now_s = time.monotonic() if now_s is None else now_s
        due = [i for i in self._due_s if self._due_s[i] <= now_s]
        if due:
            self._profile.refresh()
        for i in due:
            rule = self._rules[i]
            self._due_s[i] = now_s + rule.scan_interval_us / 1e6
            report = rule.evaluate(self._profile)
            is_new = report.fired and i not in self._has_fired
            (self._has_fired.add if report.fired else self._has_fired.discard)(i)
            if is_new:
                self._reports.append(report)
                self._actions.invoke(self._profile, report.rule, [report])
        reports, self._reports = self._reports, []
        return reports
