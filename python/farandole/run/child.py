# SPDX-License-Identifier: Apache-2.0
"""The launcher as a child of `farandole run`."""

from __future__ import annotations

import ctypes
import os
import signal
import traceback
from collections.abc import Callable

_PR_SET_PDEATHSIG = 1
FORWARDED = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT)
"""The signals that end a run."""


def start_child(body: Callable[[], int], streams: tuple[int, int], death: signal.Signals) -> int:
    """Forks a process that runs ``body`` and ends with what it returns.

    It is in a session of its own, so that Ctrl-C reaches it through `farandole run` alone. No
    signal is blocked in it.

    Args:
        body: Runs in the child.
        streams: Descriptors that become its standard output and standard error.
        death: The signal that it gets if this process dies.

    Returns:
        Its pid.
    """
    parent = os.getpid()
    pid = os.fork()
    if pid:
        return pid
    status = 1
    try:
        os.setsid()
        ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, death)
        if os.getppid() != parent:  # it died before
            os._exit(status)
        for file, standard in zip(streams, (1, 2), strict=True):
            os.dup2(file, standard)
        signal.set_wakeup_fd(-1)
        for number in (*FORWARDED, signal.SIGCHLD, signal.SIGPIPE):
            signal.signal(number, signal.SIG_DFL)
        if death != signal.SIGKILL:
            signal.signal(death, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_SETMASK, [])
        status = body()
    except SystemExit as error:
        status = error.code if isinstance(error.code, int) else 1
    except BaseException:
        traceback.print_exc()
    finally:
        os._exit(status)
