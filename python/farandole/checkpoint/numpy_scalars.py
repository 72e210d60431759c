# SPDX-License-Identifier: Apache-2.0
"""Numbers of NumPy in what torch.distributed.checkpoint has pickled: np.float64(0.5) as a value."""

from __future__ import annotations

from functools import cache
from typing import Any

_CODES = "?bBhHiIlLqQefdFDSU"
"""Of the dtypes of bools, integers, floating-point and complex numbers, and strings."""


@cache
def plain_numpy_classes() -> list[Any]:
    """What torch.load(weights_only=True) may take beside its own; no code comes with these."""
    try:
        import numpy
    except ImportError:  # then it cannot read them either
        return []
    scalar = numpy.float64(0).__reduce__()[0]
    modules = ("numpy._core.multiarray", "numpy.core.multiarray")  # of NumPy 2 and 1
    dtypes = {type(numpy.dtype(code)) for code in _CODES}
    return [numpy.dtype, *dtypes, *((scalar, f"{module}.scalar") for module in modules)]
