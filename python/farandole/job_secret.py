# SPDX-License-Identifier: Apache-2.0
"""The secret of a job, by which its processes know each other.

Launchers make it and give it to all ranks in a variable, which other users of the host cannot read.
It is never part of a command line, which they can. It is never sent: the ends of a connection prove
that they know it (handshake.py, src/comm/tcp/hello.h), and records of a store are sealed with
it. The standard library alone is imported: Spark's workers get this module by value.
"""

from __future__ import annotations

import os
from collections.abc import MutableMapping

VARIABLE = "FARANDOLE_JOB_SECRET"
"""Of all processes of a job."""
_BYTES = 32
_SEAL = "farandole-sealed "
"""As sealed_store.cpp has it."""


def make() -> str:
    """A new one."""
    return os.urandom(_BYTES).hex()


def provide(variables: MutableMapping[str, str]) -> None:
    """Adds one to the variables of a job, unless they have one."""
    if not variables.get(VARIABLE):
        variables[VARIABLE] = make()


def of_environment() -> str:
    """That of this process's job; empty: it has none."""
    return os.environ.get(VARIABLE, "")


def code(secret: str, purpose: str, *parts: bytes) -> bytes:
    """HMAC-SHA256 of the parts. Codes of different purposes, or parts, differ."""
    import hmac  # which most programs need late, if at all

    keyed = hmac.new(secret.encode(), digestmod="sha256")
    for part in (purpose.encode(), *parts):
        keyed.update(len(part).to_bytes(8, "little"))
        keyed.update(part)
    return keyed.digest()


def sealed(secret: str, key: str, text: str) -> str:
    """A record for a store in which others may write, under ``key``."""
    return f"{_SEAL}{_record_code(secret, key, text)} {text}"


def unsealed(secret: str, key: str, record: str) -> str | None:
    """What was sealed under ``key``; None: not so, or not with this secret."""
    import hmac

    begin, _, text = record.removeprefix(_SEAL).partition(" ")
    if not record.startswith(_SEAL) or not hmac.compare_digest(
        begin.encode(errors="replace"), _record_code(secret, key, text).encode()
    ):
        return None
    return text


def _record_code(secret: str, key: str, text: str) -> str:
    return code(secret, "store", key.encode(), text.encode(errors="replace")).hex()
