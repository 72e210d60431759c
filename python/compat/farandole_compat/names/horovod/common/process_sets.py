# SPDX-License-Identifier: Apache-2.0
"""Sets of ranks that have collectives of their own."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from farandole import arguments
from farandole.errors import InvalidArgument, sentences
from farandole.named import NamedCollectives

from horovod.common.collectives import Collectives
from horovod.common.world import World, world


class ProcessSet:
    """Some of the ranks; pass it to init() or add_process_set(), then to operations."""

    process_set_id: int | None = None
    ranks: list[int] | None = None

    def __init__(self, ranks_or_comm: Iterable[int] | Any) -> None:
        """Take ranks, or a communicator of mpi4py, whose ranks are those of MPI_COMM_WORLD."""
        if hasattr(ranks_or_comm, "Get_group"):
            ranks_or_comm = _ranks_of_communicator(ranks_or_comm)
        ranks = list(ranks_or_comm)
        if any(not isinstance(rank, int) for rank in ranks):
            raise InvalidArgument(
                sentences(
                    "process-set-ranks",
                    f"ProcessSet() got {ranks!r}.",
                    "it takes ints, which are ranks.",
                    "pass a list of them.",
                )
            )
        self.ranks = sorted(ranks)

    def size(self) -> int | None:
        """How many ranks it has; None if it is not in use."""
        return None if self.process_set_id is None or self.ranks is None else len(self.ranks)

    def rank(self) -> int | None:
        """This rank's place in it; None if it is not in use."""
        if self.process_set_id is None or self.ranks is None:
            return None
        return self.ranks.index(world().rank) if world().rank in self.ranks else -1

    def included(self) -> bool | None:
        """Whether this rank is in it."""
        return None if self.ranks is None else world().rank in self.ranks

    def __str__(self) -> str:
        return f"ProcessSet(process_set_id={self.process_set_id}, ranks={self.ranks})"


global_process_set = ProcessSet([])
global_process_set.process_set_id = 0


def add_process_set(process_set: ProcessSet | Iterable[int]) -> ProcessSet:
    """Make a set of ranks usable. Collective for all ranks, which add sets in one order.

    Raises:
        InvalidArgument: a rank does not exist or is there twice, or these ranks are a set already.
    """
    if not isinstance(process_set, ProcessSet):
        process_set = ProcessSet(process_set)
    state, ranks = world(), process_set.ranks or []
    known = [each.ranks for each in state.process_sets.values()]
    fits = ranks and len(set(ranks)) == len(ranks) and ranks[0] >= 0 and ranks[-1] < state.size
    if not fits or ranks in known:
        raise InvalidArgument(
            sentences(
                "process-set",
                f"add_process_set() got the ranks {ranks} of {state.size}.",
                "it takes ranks that exist, each once, that are no process set yet.",
                "pass other ranks, or the process set that these have.",
            )
        )
    number = state.next_process_set
    state.next_process_set += 1
    state.named[number] = Collectives(ranks, state.settings)
    state.named[number].record(state.timeline, state.tells_times)
    state.process_sets[number] = process_set
    process_set.process_set_id = number
    return process_set


def remove_process_set(process_set: ProcessSet) -> bool:
    """End a set; False for the one of all ranks, and for one that is not in use."""
    number = process_set.process_set_id
    if not number or number not in world().named:
        return False
    process_set.process_set_id = None
    world().process_sets.pop(number)
    world().named.pop(number).close()
    return True


def named_of(process_set: ProcessSet) -> NamedCollectives:
    """The collectives of a set.

    Raises:
        InvalidArgument: it is no ProcessSet, is not in use, or this rank is not in it.
    """
    if not isinstance(process_set, ProcessSet):
        raise arguments.wrong("an operation", "process_set", process_set, "an hvd.ProcessSet")
    state: World = world()
    named = state.named.get(
        -1 if process_set.process_set_id is None else process_set.process_set_id
    )
    if named is None:
        raise InvalidArgument(
            sentences(
                "process-set-unknown",
                f"an operation got {process_set}.",
                "it was not given to init() or add_process_set(), or was removed.",
                "call hvd.add_process_set() on all ranks.",
            )
        )
    return named


def _ranks_of_communicator(communicator: Any) -> list[int]:
    from mpi4py import MPI

    group = communicator.Get_group()
    everyone = MPI.COMM_WORLD.Get_group()
    ranks: list[int] = MPI.Group.Translate_ranks(group, list(range(group.size)), everyone)
    return list(ranks)
