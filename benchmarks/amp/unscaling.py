# SPDX-License-Identifier: Apache-2.0
"""How fast gradients are divided by the scale and searched for Inf and NaN."""

from benchmarks.amp.lanes import DTYPES, UNSCALING
from benchmarks.zero.kernels import Kernel
from benchmarks.zero.tasks import TASKS, parameters_of


def kernels_of(size: str) -> list[Kernel]:
    """One a dtype: all gradients of the transformer, each read and written once."""
    elements = parameters_of(TASKS["transformer"], size)
    return [
        Kernel(
            "unscale",
            ["amp.unscale_worker", size, dtype],
            [*UNSCALING],
            2 * elements * element_bytes,
            {"dtype": dtype, "elements": elements},
            peer="torch_kernel",
        )
        for dtype, element_bytes in DTYPES.items()
    ]
