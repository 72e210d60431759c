# SPDX-License-Identifier: Apache-2.0
"""Which hosts there are, as a script says that is called again and again."""

from __future__ import annotations

import contextlib
import os
import re
import signal
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from types import FrameType

from farandole.errors import SystemError
from farandole.run.child import FORWARDED
from farandole.run.elastic.script import Script

_LINE = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?::(?P<slots>[0-9]{1,9}))?")
_PERIOD_S = 1.0


def find_hosts(script: Script, slots_per_host: int | None) -> dict[str, int]:
    """Calls the script; places for ranks by host, in the order of its lines.

    Raises:
        SystemError: it failed, or printed something else.
    """
    hosts: dict[str, int] = {}
    for line in filter(None, map(str.strip, script.call().splitlines())):
        entry = _LINE.fullmatch(line)
        slots = (entry["slots"] or slots_per_host) if entry else None
        if entry is None or slots is None:
            raise script.failed(f"it printed {line[:80]!r}.")
        hosts[entry["name"]] = int(slots)
    return hosts


def find_first_hosts(text: str, slots_per_host: int | None) -> dict[str, int]:
    """Calls the script before a job starts. Signals end it and this process.

    Threads: the main thread, in which signal handlers run.

    Raises:
        SystemError: as find_hosts(), or no host takes ranks.
    """
    script = Script(text)
    # Another thread starts the script, so that a handler waits until the start is complete. A
    # handler that interrupts the start does not know the process yet, and leaves it behind.
    with _ended_by_signals(script), ThreadPoolExecutor(1) as thread:
        hosts = thread.submit(find_hosts, script, slots_per_host).result()
    if not any(hosts.values()):
        raise script.failed("it names no hosts that take ranks.")
    return hosts


@contextlib.contextmanager
def _ended_by_signals(script: Script) -> Iterator[None]:
    def end(number: int, _: FrameType | None) -> None:
        script.end()
        signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)

    handlers = {number: signal.getsignal(number) for number in FORWARDED}
    caught = [number for number, handler in handlers.items() if handler != signal.SIG_IGN]
    for number in caught:
        signal.signal(number, end)
    try:
        yield
    finally:
        for number in caught:
            signal.signal(number, handlers[number])


class Discovery:
    """Calls the script every second. Threads: one of its own calls it, any other reads."""

    def __init__(self, script: Script, slots_per_host: int | None, first: dict[str, int]) -> None:
        """Take what it printed the first time. Failures of later calls change no host."""
        self._script, self._slots_per_host = script, slots_per_host
        self.hosts = first
        """What it printed last; replaced as a whole."""
        self.trouble = ""
        """Why the last call failed; "" if it did not."""
        threading.Thread(target=self._run, name="farandole-discovery", daemon=True).start()

    def end(self) -> None:
        """Kills the script if it runs, and calls it no more."""
        self._script.end()

    def _run(self) -> None:
        while not self._script.has_ended:
            time.sleep(_PERIOD_S)
            try:
                self.hosts = find_hosts(self._script, self._slots_per_host)
                self.trouble = ""
            except SystemError as error:
                self.trouble = str(error)
            except Exception as error:  # whatever it is, later calls may succeed
                self.trouble = str(self._script.failed(f"{type(error).__name__}: {error}."))
