# SPDX-License-Identifier: Apache-2.0
"""The hosts of `--hosts` and `--hostfile`, and how many ranks each takes."""

from __future__ import annotations

import re
import socket
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from farandole.errors import InvalidArgument, sentences

MOST_RANKS = 250
"""Of one host: kMaxRanks of src/comm/shm/bootstrap/unix_socket.h."""
_ENTRY = re.compile(r"(?P<name>[A-Za-z0-9][A-Za-z0-9._-]*)(?::(?P<slots>[1-9][0-9]*))?")
_LINE = re.compile(rf"{_ENTRY.pattern}(?:\s+slots\s*=\s*(?P<more>[1-9][0-9]*))?")


@dataclass(frozen=True)
class Host:
    """A host by its name or IPv4 address."""

    name: str
    slots: int | None
    """Ranks that it takes; None if nothing was given."""


def parse_hosts(text: str) -> list[Host]:
    """Reads "h1:2,h2:2".

    Raises:
        InvalidArgument: an entry has another form.
    """
    hosts = []
    for entry in text.split(","):
        found = _ENTRY.fullmatch(entry.strip())
        if not found:
            raise InvalidArgument(
                sentences(
                    "hosts-malformed",
                    f"--hosts has the entry '{entry}'.",
                    "an entry is a name or an IPv4 address, then a colon and the number of ranks.",
                    "write them as --hosts h1:2,h2:2, without spaces.",
                )
            )
        hosts.append(Host(found["name"], int(found["slots"]) if found["slots"] else None))
    return hosts


def read_hostfile(path: Path) -> list[Host]:
    """Reads lines such as "h1 slots=2" or "h1:2"; "#" begins a comment.

    Raises:
        InvalidArgument: the file cannot be read, has no host, or a line has another form.
    """
    try:
        lines = path.read_text().splitlines()
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidArgument(
            sentences(
                "hostfile-unreadable",
                f"the hostfile {path} cannot be read.",
                f"{error}.",
                "pass the path of a text file with one host on each line.",
            )
        ) from error
    hosts = []
    for number, line in enumerate(lines, 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        found = _LINE.fullmatch(text)
        if not found or (found["slots"] and found["more"]):
            raise InvalidArgument(
                sentences(
                    "hostfile-malformed",
                    f"line {number} of {path} is '{line.strip()}'.",
                    "a line is a host's name or IPv4 address, then the number of its ranks.",
                    "write it as: h1 slots=2",
                )
            )
        slots = found["slots"] or found["more"]
        hosts.append(Host(found["name"], int(slots) if slots else None))
    if not hosts:
        raise InvalidArgument(
            sentences(
                "hostfile-empty",
                f"the hostfile {path} names no host.",
                "each of its lines is empty or a comment.",
                "write one host on each line, as: h1 slots=2",
            )
        )
    return hosts


def place(hosts: list[Host], ranks: int | None) -> dict[str, int]:
    """How many ranks each host gets, in the order given.

    Hosts without numbers share ``ranks`` equally, or take one rank each if it is None.

    Raises:
        InvalidArgument: the hosts cannot take that many.
    """
    if ranks is not None and all(host.slots is None for host in hosts):
        names = list(dict.fromkeys(host.name for host in hosts))
        if ranks % len(names) == 0:
            return dict.fromkeys(names, ranks // len(names))
        raise InvalidArgument(
            sentences(
                "ranks-uneven",
                f"{ranks} ranks cannot be divided among {len(names)} hosts.",
                "the hosts have no numbers, so each takes the same number of ranks.",
                f"pass -n with a multiple of {len(names)}, or give each host a number, as h1:2.",
            )
        )
    slots: dict[str, int] = {}
    for host in hosts:
        slots[host.name] = slots.get(host.name, 0) + (host.slots or 1)
    total = sum(slots.values())
    if ranks is not None and ranks > total:
        raise InvalidArgument(
            sentences(
                "ranks-exceed-hosts",
                f"-n asks for {ranks} ranks.",
                f"the hosts take {total} together, {_text_of(slots)}.",
                f"pass -n {total} or less, or give the hosts larger numbers.",
            )
        )
    return _fill(slots, total if ranks is None else ranks)


def _fill(slots: dict[str, int], ranks: int) -> dict[str, int]:
    """The first host is filled first, as mpirun does; hosts without a rank are left out."""
    placed = {}
    for name, count in slots.items():
        placed[name] = min(count, ranks)
        ranks -= placed[name]
    return {name: count for name, count in placed.items() if count}


def _text_of(placed: dict[str, int]) -> str:
    return ", ".join(f"{name}:{count}" for name, count in placed.items())


def address_for_others(name: str) -> str:
    """The name of this host, or an address of it if that name means loopback."""
    if name != "localhost" and not name.startswith("127."):
        return name
    from farandole import _C

    return _C.address_of_this_host()


def are_all_here(hosts: Iterable[str]) -> bool:
    """Whether all of these are this machine."""
    return all(map(is_this_host, hosts))


def is_this_host(name: str) -> bool:
    """Whether an address of ``name`` belongs to this machine: a socket can be bound to it."""
    try:
        addresses = socket.getaddrinfo(name, 0, type=socket.SOCK_STREAM)
    except OSError:
        return False
    for family, kind, protocol, _, address in addresses:
        try:
            with socket.socket(family, kind, protocol) as probe:
                probe.bind(address)
        except OSError:
            continue
        return True
    return False
