# SPDX-License-Identifier: Apache-2.0
"""The rendezvous of torchrun's agent where all ranks are on this host.

torchrun's own for that (--standalone) listens on all interfaces, and keeps pickles in its store,
which whoever reaches it may replace.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch.distributed.elastic.rendezvous import RendezvousHandler, RendezvousParameters

BACKEND = "farandole"
"""Its name for torchrun."""


def register_rendezvous() -> None:
    """Makes it known to torchrun in this process, which then runs an agent."""
    from torch.distributed.elastic.rendezvous import rendezvous_handler_registry

    rendezvous_handler_registry.register(BACKEND, _make)


def _make(parameters: RendezvousParameters) -> RendezvousHandler:
    from torch._C._distributed_c10d import PrefixStore
    from torch.distributed.elastic import rendezvous

    from farandole.served_store import LOCALHOST, serve_store

    class OfThisHost(rendezvous.RendezvousHandler):
        """One agent, which is alone, and its store on loopback, which ranks use too."""

        def __init__(self) -> None:
            self._store = serve_store(LOCALHOST)
            self._rounds = 0

        @property
        def use_agent_store(self) -> bool:
            return True

        def get_backend(self) -> str:
            return BACKEND

        def next_rendezvous(self) -> rendezvous.RendezvousInfo:
            self._rounds += 1
            store = PrefixStore(f"{parameters.run_id}/{self._rounds}", self._store)
            place = rendezvous.RendezvousStoreInfo(LOCALHOST, self._store.port)
            return rendezvous.RendezvousInfo(store, 0, 1, place)

        def is_closed(self) -> bool:
            return False

        def set_closed(self) -> None:
            """Nobody else asks."""

        def num_nodes_waiting(self) -> int:
            return 0

        def get_run_id(self) -> str:
            return parameters.run_id

        def shutdown(self) -> bool:
            return True

    return OfThisHost()
