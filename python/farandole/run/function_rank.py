# SPDX-License-Identifier: Apache-2.0
"""What each rank of run_function() runs: `python -m farandole.run.function_rank`."""

from __future__ import annotations

import importlib
import os
import pickle
import socket
import sys
import threading
import traceback
from multiprocessing.connection import Connection
from typing import Any

from farandole.elastic_meeting import is_elastic
from farandole.errors import AbortedError, InvalidArgument, PeerFailure, sentences
from farandole.run.function_meeting import Outcome, connect, send


def main() -> int:
    """Calls the function, and gives its result back; returns the exit status."""
    connection = connect()
    rank = int(os.environ["RANK"])
    connection.send(("rank", rank, os.getpid(), socket.gethostname()))
    path = connection.recv()
    if path is not None:
        sys.path[:] = path
    payload = connection.recv_bytes()
    threading.Thread(
        target=_end_with, args=(connection,), name="farandole-caller", daemon=True
    ).start()
    outcome = _call(payload)
    outcome.rank = int(os.environ["RANK"]) if is_elastic() else rank
    send(outcome)
    if outcome.error:
        print(outcome.traceback, file=sys.stderr, end="", flush=True)
    return 1 if outcome.error else 0


def _end_with(connection: Connection) -> None:
    """Ends this process when the one that asked has died: nobody waits for the result."""
    try:
        connection.recv()
    except (OSError, EOFError):
        os._exit(1)


def _call(payload: bytes) -> Outcome:
    try:
        function, args, kwargs = pickle.loads(payload)
        return Outcome(result=_pickled(function(*args, **kwargs)))
    except Exception as error:
        frames = error.__traceback__.tb_next if error.__traceback__ else None
        outcome = Outcome(
            error="".join(traceback.format_exception_only(type(error), error)).strip(),
            traceback="".join(traceback.format_exception(type(error), error, frames)),
            is_consequence=_is_consequence(error),
        )
        try:
            outcome.exception = _writer().dumps(error)
        except Exception:  # whatever it holds raises; its text is there
            return outcome
        return outcome


def _pickled(result: Any) -> bytes:
    try:
        data: bytes = _writer().dumps(result)
    except Exception as error:  # whatever the object raises
        raise InvalidArgument(
            sentences(
                "function-result",
                f"the function returned {type(result).__name__}, which cannot be brought back.",
                f"it cannot be pickled: {error}",
                "return numbers, tensors, dicts and the like, or save it to a file.",
            )
        ) from error
    return data


def _writer() -> Any:
    return importlib.import_module("cloudpickle")


def _is_consequence(error: BaseException | None) -> bool:
    while error is not None:
        if isinstance(error, (PeerFailure, AbortedError)):
            return True
        error = error.__cause__
    return False


if __name__ == "__main__":
    sys.exit(main())
