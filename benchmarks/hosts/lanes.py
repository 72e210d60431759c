# SPDX-License-Identifier: Apache-2.0
"""The lanes of each part, and layouts of ranks on hosts. Needs no torch."""

LANES = {
    "raw": "plain TCP",
    "alone": "no communication",
    "farandole": "Farandole",
    "farandole_bf16": "Farandole, bfloat16",
    "farandole_mpi": "Farandole over MPI",
    "gloo": "torch over gloo",
    "gloo_bf16": "torch over gloo, bfloat16",
    "openmpi": "OpenMPI over TCP",
    "alone_zero": "no communication, own share of AdamW",
    "farandole_zero": "Farandole's ZeRO",
    "farandole_zero_overlap": "Farandole's ZeRO, overlap_with_ddp",
    "farandole_zero_host": "Farandole's ZeRO within a host",
    "gloo_zero": "torch's ZeRO over gloo",
}
OF_MPIRUN = ["farandole_mpi", "openmpi"]  # which starts their ranks
OF_PART = {
    "all_reduce": ["raw", "farandole", "farandole_bf16", "farandole_mpi", "gloo", "openmpi"],
    "steps": [
        *("raw", "alone", "farandole", "farandole_bf16", "gloo", "gloo_bf16"),
        *("alone_zero", "farandole_zero", "farandole_zero_overlap", "farandole_zero_host"),
        "gloo_zero",
    ],
    "formation": ["farandole", "gloo"],
}


def hosts_of(layout: str) -> list[int]:
    """By rank, of a layout as "0,0,1,1"."""
    return [int(host) for host in layout.split(",")]


def lanes_of(part: str, layout: str) -> list[str]:
    """All that differ from each other there."""
    hosts = hosts_of(layout)
    is_one_a_host = len(hosts) == len(set(hosts))
    return [lane for lane in OF_PART[part] if lane != "farandole_zero_host" or not is_one_a_host]


def layout_text(layout: str) -> str:
    """2 hosts x 2 ranks, and in which order the hosts have them."""
    hosts = hosts_of(layout)
    count, each = len(set(hosts)), len(hosts) // len(set(hosts))
    orders = {
        ", blocked": [host for host in range(count) for _ in range(each)],
        ", alternating": [*range(count)] * each,
    }
    order = next((order for order, ranks in orders.items() if ranks == hosts), None)
    if order is None:
        return f"ranks on hosts {layout}"
    text = f"{count} host{'s' * (count > 1)} x {each} rank{'s' * (each > 1)}"
    return text if 1 in (count, each) else text + order
