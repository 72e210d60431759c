# SPDX-License-Identifier: Apache-2.0
"""Links that need not be measured, each with its source.

Bandwidths are what large all_reduces attain (bus bandwidth as nccl-tests defines it), in each
direction: of a rank within a host, of a host between hosts. Where there is only the rate of the
hardware, a part of it is assumed to be attained, with a wide spread; the source says so. Latencies
of GPUs' links are those by which NCCL 2.30.7 chooses algorithms (protocol Simple; tuning.cc), and
its bandwidths of NVLink and PCIe are those of topo.h.
"""

from __future__ import annotations

import difflib

from farandole.bench.predict.links import GB, US, Algorithm, Link, Links
from farandole.errors import InvalidArgument, sentences

NCCL_TOPO = "https://github.com/NVIDIA/nccl/blob/master/src/graph/topo.h"
NVLINK = "https://www.nvidia.com/en-us/data-center/nvlink/"
EC2 = "https://docs.aws.amazon.com/ec2/latest/instancetypes/ac.html"
NVLINK_LATENCY, PCIE_LATENCY, RDMA_LATENCY = 3.4 * US, 5.7 * US, 14 * US
NCCL_LAUNCH = 8.4 * US  # baseLatencies of tuning.cc
TCP_LATENCY = 50 * US  # assumed: a round trip between kernels, and a thread that wakes up
TCP_MESSAGE = 5 * US  # assumed: the system calls of a message
GBIT = GB / 8

WITHIN = {
    "nvlink5": Link(
        NVLINK_LATENCY, 18 * 40.1 * GB, 0.15,
        source=f"18 links of 50 GB/s each way ({NVLINK}); NCCL plans with 40.1 ({NCCL_TOPO})",
    ),
    "nvlink4": Link(
        NVLINK_LATENCY, 18 * 20.6 * GB, 0.15,
        source=f"18 links of 25 GB/s each way ({NVLINK}); NCCL plans with 20.6 ({NCCL_TOPO})",
    ),
    "nvlink2": Link(
        NVLINK_LATENCY, 6 * 20.0 * GB, 0.15,
        source=f"6 links of 25 GB/s each way; NCCL plans with 20.0 ({NCCL_TOPO})",
    ),
    "pcie5": Link(
        PCIE_LATENCY, 48 * GB, 0.25,
        source=f"x16; four times the 12 GB/s with which NCCL plans for PCIe 3 ({NCCL_TOPO})",
    ),
    "pcie4": Link(
        PCIE_LATENCY, 24 * GB, 0.25,
        source=f"x16; twice the 12 GB/s with which NCCL plans for PCIe 3 ({NCCL_TOPO})",
    ),
    "shared-memory": Link(
        10 * US, 10 * GB, 0.5,
        source="all_reduce of 1 to 16 MiB in benchmarks/results/collectives.jsonl: 5 to 18 GB/s",
    ),
}  # fmt: skip
BETWEEN = {
    "ib-ndr": Link(
        RDMA_LATENCY, 48 * GB, 0.05,
        source=f"one port of 400 Gbit/s a host; NCCL plans with 12 of 12.5 GB/s ({NCCL_TOPO})",
    ),
    "ib-ndr-x8": Link(
        RDMA_LATENCY, 8 * 48 * GB, 0.05,
        source="eight ports of 400 Gbit/s a host, as in DGX H100 "
        "(https://docs.nvidia.com/dgx/dgxh100-user-guide/introduction-to-dgxh100.html); as ib-ndr",
    ),
    "efa-p5": Link(
        2 * RDMA_LATENCY, 0.8 * 3200 * GBIT, 0.2,
        source=f"3200 Gbit/s a host ({EC2}); 0.8 and twice InfiniBand's latency are assumed",
    ),
    "efa-p4d": Link(
        2 * RDMA_LATENCY, 0.8 * 400 * GBIT, 0.2,
        source=f"400 Gbit/s a host ({EC2}); 0.8 and twice InfiniBand's latency are assumed",
    ),
    "100gbe": Link(
        TCP_LATENCY, 0.85 * 100 * GBIT, 0.1, TCP_MESSAGE,
        source="IEEE 802.3ba; 0.85 for TCP/IP on several connections, 50 us and 5 us are assumed",
    ),
    "25gbe": Link(
        TCP_LATENCY, 0.9 * 25 * GBIT, 0.1, TCP_MESSAGE,
        source="IEEE 802.3by; 0.9 for TCP/IP (frames of 1500 bytes carry 0.949), 50 us and 5 us "
        "are assumed",
    ),
    "10gbe": Link(
        TCP_LATENCY, 0.93 * 10 * GBIT, 0.05, TCP_MESSAGE,
        source="IEEE 802.3ae; 0.93 for TCP/IP (frames of 1500 bytes carry 0.949), 50 us and 5 us "
        "are assumed",
    ),
}  # fmt: skip


def link_of(name: str, presets: dict[str, Link]) -> Link:
    """A preset.

    Raises:
        InvalidArgument: there is none of that name.
    """
    if name in presets:
        return presets[name]
    close = difflib.get_close_matches(name, presets, n=1)
    raise InvalidArgument(
        sentences(
            "predict-preset",
            f"there is no link '{name}'" + (f"; is it '{close[0]}'?" if close else "."),
            f"the presets are {', '.join(presets)}.",
            "pass one of them, or a file of measured links with --links; "
            "farandole bench predict --list-links shows all.",
        )
    )


def preset(within: str, between: str) -> Links:
    """NCCL on GPUs; Farandole's own collectives where ranks share memory."""
    inner, outer = link_of(within, WITHIN), link_of(between, BETWEEN)
    if within == "shared-memory":
        return Links(inner, outer, Algorithm.STRIPES)
    return Links(inner, outer, Algorithm.NCCL, launch_s=NCCL_LAUNCH)
