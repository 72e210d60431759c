# SPDX-License-Identifier: Apache-2.0
"""Hosts that are network namespaces of this machine, joined by a switch of a given rate."""

import os
import subprocess
from collections.abc import Sequence
from contextlib import AbstractContextManager, ExitStack
from types import TracebackType

from benchmarks.harness.ranks import Commands, Place, UnavailableError, on_every_rank, python

INTERFACE = "eth0"
BURST = "128kb"
LATENCY = "100ms"


class EmulatedHosts(AbstractContextManager["EmulatedHosts"]):
    """Each has one interface, which sends and receives `rate` (as tc writes it) at once.

    Raises UnavailableError where this process may not make namespaces.
    """

    def __init__(self, count: int, rate: str | None) -> None:
        self.names = [f"farandole{os.getpid()}-{host}" for host in range(count)]
        self.switch = f"farandole{os.getpid()}-switch"
        self.undo = ExitStack()
        try:
            self.make(rate)
        except (OSError, subprocess.CalledProcessError) as error:
            self.undo.close()
            text = error.stderr if isinstance(error, subprocess.CalledProcessError) else error
            raise UnavailableError(f"hosts cannot be emulated here: {text}") from error

    def make(self, rate: str | None) -> None:
        """Namespaces around one with a bridge."""
        for name in [self.switch, *self.names]:
            ip("netns", "add", name)
            self.undo.callback(ip, "netns", "del", name)
        ip("-n", self.switch, "link", "add", "bridge0", "type", "bridge")
        ip("-n", self.switch, "link", "set", "bridge0", "up")
        for host, name in enumerate(self.names):
            port = f"port{host}"
            ends = [INTERFACE, "netns", name, "type", "veth", "peer", "name", port]
            ip("link", "add", *ends, "netns", self.switch)
            ip("-n", self.switch, "link", "set", port, "master", "bridge0", "up")
            ip("-n", name, "address", "add", f"{address(host)}/24", "dev", INTERFACE)
            ip("-n", name, "link", "set", INTERFACE, "up")
            ip("-n", name, "link", "set", "lo", "up")
            route = ["route", "change", "10.79.0.0/24", "dev", INTERFACE, "congctl", "cubic"]
            ip("-n", name, *route)
            if rate is not None:
                limit(name, INTERFACE, rate)
                limit(self.switch, port, rate)

    def __exit__(
        self,
        kind: type[BaseException] | None,
        value: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.undo.close()

    def commands(self, hosts: Sequence[int], module: str, *arguments: str) -> Commands:
        """A module of benchmarks on every rank; `hosts`: by rank."""
        start = [*python(module), *arguments]

        def commands_of(place: Place) -> list[list[str]]:
            return [
                ["ip", "netns", "exec", self.names[host], "env", *settings(host), *command]
                for host, command in zip(hosts, on_every_rank(start, place), strict=True)
            ]

        return commands_of


def address(host: int) -> str:
    """Of its interface."""
    return f"10.79.0.{host + 1}"


def settings(host: int) -> list[str]:
    """Variables of the environment of a rank."""
    return [f"GLOO_SOCKET_IFNAME={INTERFACE}", f"FARANDOLE_HOST_ID=emulated-{host}"]


def ip(*arguments: str) -> None:
    """Runs a command of iproute2."""
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)


def limit(namespace: str, interface: str, rate: str) -> None:
    """What leaves the interface."""
    shaper = ["tbf", "rate", rate, "burst", BURST, "latency", LATENCY]
    ip("netns", "exec", namespace, "tc", "qdisc", "add", "dev", interface, "root", *shaper)
