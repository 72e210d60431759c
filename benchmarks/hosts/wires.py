# SPDX-License-Identifier: Apache-2.0
"""Plain TCP between ranks, as fast as the network takes it: what collectives are compared with."""

import fcntl
import select
import socket
import struct
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass

import torch.distributed as dist

from benchmarks.hosts.emulated import INTERFACE

SIOCGIFADDR = 0x8915
PIECE = 4 << 20
OUT, INTO = memoryview(bytes(PIECE)), memoryview(bytearray(PIECE))


def own_address() -> str:
    """Of the interface of this emulated host."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as each:
        asked = struct.pack("256s", INTERFACE.encode())
        return socket.inet_ntoa(fcntl.ioctl(each.fileno(), SIOCGIFADDR, asked)[20:24])


class Wires:
    """One connection with each of `peers`, which are ranks of other hosts. Collective."""

    def __init__(self, peers: Sequence[int], group: dist.ProcessGroup) -> None:
        rank, world_size = dist.get_rank(), dist.get_world_size()
        with socket.create_server((own_address(), 0)) as listener:
            places: list[tuple[str, int]] = [("", 0)] * world_size
            dist.all_gather_object(places, listener.getsockname(), group=group)
            self.connections = []
            for peer in (each for each in peers if each < rank):
                connection = socket.create_connection(places[peer])
                self.connections.append(connection)
            for _ in (each for each in peers if each > rank):
                self.connections.append(listener.accept()[0])
        for connection in self.connections:
            connection.setblocking(False)
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)

    def exchange(self, size: int) -> None:
        """Sends `size` bytes to each peer and receives as many, all at once."""
        moves = {each.fileno(): Move(each, size, size) for each in self.connections}
        poll = select.poll()
        for number in moves:
            poll.register(number, select.POLLIN | select.POLLOUT)
        while moves:
            for number, _ in poll.poll():
                if events := moves[number].advance():
                    poll.modify(number, events)
                else:
                    poll.unregister(number)
                    del moves[number]


@dataclass
class Move:
    """What is left to be sent and received over one connection."""

    connection: socket.socket
    to_send: int
    to_receive: int

    def advance(self) -> int:
        """Moves what does not block; what to wait for, 0 if all is done."""
        with suppress(BlockingIOError):
            if self.to_send:
                self.to_send -= self.connection.send(OUT[: self.to_send])
        with suppress(BlockingIOError):
            if self.to_receive:
                self.to_receive -= self.connection.recv_into(INTO, min(PIECE, self.to_receive))
        return (select.POLLOUT if self.to_send else 0) | (select.POLLIN if self.to_receive else 0)
