# SPDX-License-Identifier: Apache-2.0
"""Calls the host discovery script, and leaves none of its process group behind."""

from __future__ import annotations

import contextlib
import os
import selectors
import signal
import subprocess
import threading
import time

from farandole.errors import SystemError, sentences
from farandole.run.failure import describe

LONGEST_S = 30.0
"""How long a call may take."""
_MOST_BYTES = 1 << 20
"""The most that the script may print to standard output, and to standard error: 1 MiB."""
_LOOK_S = 0.01
"""How often to look whether the script has ended while its outputs are open or silent."""
_GRACE_S = 1.0
"""How long to read after its end, if a process that it has started keeps its outputs open."""
_SHOWN = 200
"""Characters of its last line in an error."""
_LOOKING = os.WEXITED | os.WNOHANG | os.WNOWAIT


class Script:
    """A shell command. Threads: one calls it, another may end it."""

    def __init__(self, text: str, longest_s: float = LONGEST_S) -> None:
        self.text = text
        self._longest_s = longest_s
        self._lock = threading.RLock()  # end() calls _kill(), which takes it too
        self._process: subprocess.Popen[bytes] | None = None  # guarded by _lock
        self.has_ended = False
        """Whether end() was called: it is not called again."""

    def call(self) -> str:
        """What it prints.

        The script leads its own session and process group. When it ends, takes too long or prints
        too much, its process group is killed.

        Raises:
            SystemError: it failed or was too slow, or it printed too much, too late, or something
                that is not text.
        """
        try:
            with self._started() as process:
                try:
                    printed, errors, is_cut = self._outputs(process)
                finally:
                    self._kill()
        except subprocess.TimeoutExpired:
            raise self.failed(
                f"it was killed: it ran for more than {self._longest_s:g} s."
            ) from None
        except OSError as error:
            raise self.failed(f"it could not be started: {error.strerror}.") from error
        if process.returncode != 0:
            lines = errors.decode(errors="replace").strip().splitlines()
            last = repr(lines[-1][:_SHOWN]) if lines else "nothing"  # repr(): no control characters
            status = describe(process.returncode)
            raise self.failed(f"it failed ({status}). Its last line on standard error: {last}.")
        if is_cut:
            raise self.failed(
                f"{_GRACE_S:g} s after it ended, a process that it had started still had its "
                "standard output open, and the output did not end with a whole line: "
                f"{printed[-80:]!r}."
            )
        try:
            return printed.decode()
        except UnicodeDecodeError:
            raise self.failed(f"it printed {printed[:80]!r}, which is not UTF-8.") from None

    def end(self) -> None:
        """Kills it if it runs; it is not called again. Threads: any but the one in call()."""
        with self._lock:
            self.has_ended = True
            self._kill()

    def failed(self, why: str) -> SystemError:
        """The error."""
        return SystemError(
            sentences(
                "elastic-discovery",
                f"the host discovery script '{self.text}' could not be used.",
                why,
                "let it end with status 0 and print a line for each host, as h1:2; a number may "
                "be left out where --slots-per-host is given.",
            )
        )

    def _outputs(self, process: subprocess.Popen[bytes]) -> tuple[bytes, bytes, bool]:
        """What the script prints to standard output and to standard error until it ends.

        The last value is whether standard output may be cut: it is still open, as a filter that is
        slow leaves it, and ends within a line.

        Its exit status is not read yet: until then no other process gets its pid, and _kill() can
        kill its process group.
        """
        assert process.stdout
        assert process.stderr
        printed = {process.stdout.fileno(): b"", process.stderr.fileno(): b""}
        deadline_s = time.monotonic() + self._longest_s
        with selectors.DefaultSelector() as selector:
            for pipe in printed:
                os.set_blocking(pipe, False)
                selector.register(pipe, selectors.EVENT_READ)
            has_ended = False
            while not (has_ended and not selector.get_map()):
                if not has_ended and os.waitid(os.P_PID, process.pid, _LOOKING):
                    has_ended = True
                    deadline_s = min(deadline_s, time.monotonic() + _GRACE_S)
                is_late = time.monotonic() > deadline_s
                for key, _ in selector.select(_LOOK_S):
                    data = os.read(key.fd, _MOST_BYTES)
                    printed[key.fd] += data
                    if len(printed[key.fd]) > _MOST_BYTES:
                        raise self.failed("it was killed: it printed more than 1 MiB.")
                    if not data:
                        selector.unregister(key.fd)
                if is_late:  # after a last look: this process may have been stopped meanwhile
                    if has_ended:
                        break
                    raise subprocess.TimeoutExpired(self.text, self._longest_s)
            first, second = printed.values()
            is_open = process.stdout.fileno() in selector.get_map()
        return first, second, is_open and not first.endswith(b"\n")

    def _started(self) -> subprocess.Popen[bytes]:
        with self._lock:
            if self.has_ended:
                raise self.failed("the job has ended.")
            self._process = subprocess.Popen(
                ["/bin/sh", "-c", self.text],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
                start_new_session=True,
            )
            return self._process

    def _kill(self) -> None:
        """Kills its process group, unless its end was noticed: then the number may be another's."""
        with self._lock:
            if self._process is not None and self._process.returncode is None:
                with contextlib.suppress(ProcessLookupError):
                    os.killpg(self._process.pid, signal.SIGKILL)
