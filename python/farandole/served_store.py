# SPDX-License-Identifier: Apache-2.0
"""A store of torch's that this process serves."""

from __future__ import annotations

import contextlib
import socket

from torch._C._distributed_c10d import TCPStore

LOOPBACK = "127.0.0.1"
LOCALHOST = "localhost"
_BACKLOG = 512


def serve_store(host: str) -> TCPStore:
    """Serves one at a free port; on loopback, if ``host`` is that, and else on all interfaces."""
    if host not in (LOOPBACK, LOCALHOST):
        return TCPStore(host, 0, is_master=True, wait_for_workers=False)
    listener = _listen(host)
    port = listener.getsockname()[1]
    return TCPStore(
        host,
        port,
        is_master=True,
        wait_for_workers=False,
        master_listen_fd=listener.detach(),  # torch's own listen on all interfaces
    )


def _listen(host: str) -> socket.socket:
    """As torch's clients resolve it: IPv6 first."""
    if host == LOCALHOST and socket.has_ipv6:
        with contextlib.suppress(OSError):  # it has no address there
            return socket.create_server((host, 0), family=socket.AF_INET6, backlog=_BACKLOG)
    return socket.create_server((host, 0), backlog=_BACKLOG)
