# SPDX-License-Identifier: Apache-2.0
"""Which rank is where: the variables that a launcher would set, from the addresses of all tasks.

Sent to Spark's workers by value, as task.py.
"""

from __future__ import annotations

from collections.abc import Sequence


def variables_of(
    rank: int, hosts: Sequence[str], gpus: Sequence[Sequence[str]], port: int
) -> dict[str, str]:
    """What torchrun and horovodrun would set for a rank, and the GPUs of its host.

    Local rank i of a host sees the GPUs of all its ranks, and its own is number i, as scripts that
    call ``torch.cuda.set_device(local_rank)`` expect.

    Args:
        rank: Of the task: its partition.
        hosts: Of each rank.
        gpus: Their numbers on its host that Spark has given to each rank; none without GPUs.
        port: A free one of rank 0's host, where the ranks meet.
    """
    here = [each for each, host in enumerate(hosts) if host == hosts[rank]]
    local_rank = here.index(rank)
    machines = list(dict.fromkeys(hosts))
    crossing = [host for host in machines if hosts.count(host) > local_rank]
    found = {
        "RANK": rank,
        "WORLD_SIZE": len(hosts),
        "LOCAL_RANK": local_rank,
        "LOCAL_WORLD_SIZE": len(here),
        "GROUP_RANK": machines.index(hosts[rank]),
        "GROUP_WORLD_SIZE": len(machines),
        "MASTER_ADDR": hosts[0],
        "MASTER_PORT": port,
        "HOROVOD_RANK": rank,
        "HOROVOD_SIZE": len(hosts),
        "HOROVOD_LOCAL_RANK": local_rank,
        "HOROVOD_LOCAL_SIZE": len(here),
        "HOROVOD_CROSS_RANK": crossing.index(hosts[rank]),
        "HOROVOD_CROSS_SIZE": len(crossing),
    }
    variables = {name: str(value) for name, value in found.items()}
    most = max(len(gpus[each]) for each in here)
    if most:
        numbers = [gpus[each][i] for i in range(most) for each in here if i < len(gpus[each])]
        variables["CUDA_VISIBLE_DEVICES"] = ",".join(numbers)
    return variables


def host_of(address: str) -> str:
    """The host of a task's address, which may have a port: "h1:4040", "[fe80::1]:4040"."""
    if address.startswith("["):
        return address[1:].partition("]")[0]
    return address.partition(":")[0] if address.count(":") == 1 else address
