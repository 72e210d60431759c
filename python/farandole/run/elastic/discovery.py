# SPDX-License-Identifier: Apache-2.0
"""Which hosts there are, as a script says that is called again and again."""

from __future__ import annotations

import re
import subprocess
import threading
import time

from farandole.errors import SystemError, sentences

_LINE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?::(?P<slots>[0-9]+))?")
_PERIOD_S = 1.0
_LONGEST_S = 60.0


def find_hosts(script: str, slots_per_host: int | None) -> dict[str, int]:
    """Calls the script; places for ranks by host, in the order of its lines.

    Raises:
        SystemError: it failed, or printed something else.
    """
    try:
        done = subprocess.run(
            ["/bin/sh", "-c", script],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_LONGEST_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise _failed(script, f"it ran for more than {_LONGEST_S:g} s.") from None
    if done.returncode != 0:
        last = (done.stderr.strip().splitlines() or ["nothing"])[-1]
        raise _failed(script, f"its exit status was {done.returncode}, and it printed: {last}.")
    hosts: dict[str, int] = {}
    for line in filter(None, map(str.strip, done.stdout.splitlines())):
        entry = _LINE.fullmatch(line)
        slots = (entry["slots"] or slots_per_host) if entry else None
        if entry is None or slots is None:
            raise _failed(script, f"it printed '{line}'.")
        hosts[entry["name"]] = int(slots)
    return hosts


def _failed(script: str, why: str) -> SystemError:
    return SystemError(
        sentences(
            "elastic-discovery",
            f"the host discovery script '{script}' could not be used.",
            why,
            "let it end with status 0 and print a line for each host, as h1:2; a number may be "
            "left out where --slots-per-host is given.",
        )
    )


class Discovery:
    """Calls the script every second. Threads: one of its own calls it, any other reads."""

    def __init__(self, script: str, slots_per_host: int | None, first: dict[str, int]) -> None:
        """Take what it printed the first time. Failures of later calls change no host."""
        self._script, self._slots_per_host = script, slots_per_host
        self.hosts = first
        """What it printed last; replaced as a whole."""
        self.trouble = ""
        """Why the last call failed; "" if it did not."""
        threading.Thread(target=self._run, name="farandole-discovery", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(_PERIOD_S)
            try:
                self.hosts = find_hosts(self._script, self._slots_per_host)
                self.trouble = ""
            except SystemError as error:
                self.trouble = str(error)
