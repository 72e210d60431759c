# SPDX-License-Identifier: Apache-2.0
"""How mpirun starts ranks on emulated hosts, as it would on real ones over ssh."""

import shlex
import shutil
from collections.abc import Sequence
from importlib.util import find_spec

from benchmarks.harness import ranks
from benchmarks.harness.ranks import Commands, Place, UnavailableError
from benchmarks.hosts.emulated import EmulatedHosts, address

# What mpirun uses in place of ssh: AGENT ADDRESS COMMAND... The benchmark starts mpirun itself with
# it too. Each host needs its own name and its own folder of sessions, else mpirun fails.
AGENT = """#!/bin/sh
case $1 in
{cases}
esac
shift
mkdir -p "{folder}/$name"
export TMPDIR="{folder}/$name"
exec ip netns exec $namespace unshare --uts sh -c "hostname $name && $*"
"""
NEEDED = ["unshare", "hostname"]
# Emulated hosts share the cores of this machine, which OpenMPI cannot know: it would bind the ranks
# of each host to the same cores, and waiting ranks would spin on them (13 times slower). By default
# its protocol over TCP is half-duplex at 1 Gbit/s; with these flags it sends and receives at once.
SETTINGS = [
    *("--bind-to", "none"),
    *("--mca", "mpi_yield_when_idle", "1"),
    *("--mca", "btl_tcp_flags", "1"),
]


def host_name(host: int) -> str:
    """What the ranks of mpirun there take their host for."""
    return f"host{host}"


def commands_of_mpirun(hosts: EmulatedHosts, host_of: Sequence[int], module: str) -> Commands:
    """A module of benchmarks on every rank, with the hosts of ranks and its socket."""

    def commands(place: Place) -> list[list[str]]:
        start = ranks.mpirun()
        if not find_spec("mpi4py"):
            raise UnavailableError("mpi4py is missing; pip install mpi4py")
        if missing := [name for name in NEEDED if not shutil.which(name)]:
            raise UnavailableError(f"{' and '.join(missing)} is missing")
        agent = place.folder / "agent"
        agent.write_text(script(hosts, place))
        agent.chmod(0o700)
        command = [*start, "--prtemca", "plm_ssh_agent", str(agent), *SETTINGS]
        layout = ",".join(map(str, host_of))
        for rank, host in enumerate(host_of):  # one application a rank: ranks in this order
            command += [":"] * (rank > 0) + ["-n", "1", "--host", address(host)]
            command += [*ranks.python(module), layout, str(place.socket)]
        return [[str(agent), address(0), *map(shlex.quote, command)]]  # ssh takes a line of a shell

    return commands


def script(hosts: EmulatedHosts, place: Place) -> str:
    """The agent's."""
    cases = "\n".join(
        f"{address(host)}) namespace={namespace} name={host_name(host)};;"
        for host, namespace in enumerate(hosts.names)
    )
    return AGENT.format(cases=cases, folder=place.folder)
