#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Prints the test results of CI, from the JUnit reports of GoogleTest and pytest.

    summary.py --may-skip REASON... --lane NAME REPORT... [--lane NAME REPORT...]...

For each lane, prints the numbers of passed, failed and skipped tests, the slowest files and each
skip reason; at the end, the failures of all lanes. Exits with 1 if a report cannot be read, if no
test of a lane passed, if a test failed or did not run, or if a skip reason matches no REASON (a
regular expression).
"""

from __future__ import annotations

import argparse
import re
import sys
import xml.etree.ElementTree as ElementTree
from collections import Counter
from pathlib import Path

SLOWEST = 12  # number of slowest files to print for each lane
MESSAGE = 300  # number of characters to print of a failure's message


def reason_of(skip: ElementTree.Element) -> str:
    """The skip reason: an attribute in pytest's reports, the last line of text in GoogleTest's."""
    text = skip.get("message") or skip.text or "no reason"
    lines = [line for line in text.strip().splitlines() if line.strip()]
    return lines[-1].strip() if lines else "no reason"


class Lane:
    """The test results of a lane."""

    def __init__(self, name: str, reports: list[str]) -> None:
        self.name = name
        self.problems: list[str] = []
        self.failures: list[str] = []
        self.counts: Counter[str] = Counter()
        self.skips: Counter[str] = Counter()
        self.seconds: Counter[str] = Counter()
        for report in reports:
            self.read(Path(report))
        if not self.counts["passed"]:
            self.problems.append("no test passed")

    def read(self, report: Path) -> None:
        """Adds the results of a report."""
        try:
            root = ElementTree.parse(report).getroot()
        except (OSError, ElementTree.ParseError) as error:
            self.problems.append(f"{report} cannot be read: {error}")
            return
        suites = [each for each in root.iter("testsuite") if each.find("testsuite") is None]
        told = sum(int(each.get("tests") or 0) for each in suites)
        cases = len(list(root.iter("testcase")))
        if told > cases:
            self.problems.append(f"{report} has {cases} of its {told} tests")
        for case in root.iter("testcase"):
            suite = (case.get("classname") or report.stem).removeprefix("tests.python.")
            # GoogleTest writes one report for each CTest test; pytest writes one for all files.
            file = report.stem if report.parent.name == "results" else suite
            self.seconds[file] += float(case.get("time") or 0)
            skip = case.find("skipped")
            wrong = [each for each in case if each.tag in ("failure", "error")]
            if wrong:
                self.counts["failed"] += 1
                words = " ".join((wrong[0].get("message") or "").split())[:MESSAGE]
                self.failures.append(f"{suite}: {case.get('name')}: {words}")
            elif skip is not None:
                self.counts["skipped"] += 1
                self.skips[reason_of(skip)] += 1
            elif case.get("status") in (None, "run"):
                self.counts["passed"] += 1
            else:
                self.problems.append(f"{suite}: {case.get('name')} did not run")

    def words(self) -> str:
        """The numbers of passed, failed and skipped tests, as text."""
        return ", ".join(f"{self.counts[kind]} {kind}" for kind in ("passed", "failed", "skipped"))


def main() -> int:
    """Prints the results of each lane; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--may-skip", nargs="*", default=[], metavar="REASON")
    parser.add_argument("--lane", nargs="+", action="append", default=[], metavar="NAME REPORT")
    asked = parser.parse_args()
    wrong: list[str] = []
    for name, *reports in asked.lane:
        lane = Lane(name, reports)
        print(f"{name}: {lane.words()}")
        for file, seconds in lane.seconds.most_common(SLOWEST):
            print(f"    {seconds:6.1f} s  {file}")
        for reason, count in lane.skips.most_common():
            known = any(re.search(each, reason) for each in asked.may_skip)
            print(f"    skipped {count}: {reason}")
            if not known:
                wrong.append(f"{name}: skipped {count} for a reason that is not allowed: {reason}")
        wrong += [f"{name}: FAILED {failure}" for failure in lane.failures]
        wrong += [f"{name}: {problem}" for problem in lane.problems]
    for each in wrong:
        print(each)
    return int(bool(wrong))


if __name__ == "__main__":
    sys.exit(main())
