# SPDX-License-Identifier: Apache-2.0
"""What reading a recording needs, which a training need not have."""

from __future__ import annotations

import importlib.util

from farandole.errors import NotSupported, sentences


def check_numpy() -> None:
    """Before anything is read.

    Raises:
        NotSupported: it is not installed.
    """
    if importlib.util.find_spec("numpy") is None:
        raise NotSupported(
            sentences(
                "report-numpy",
                "the recording could not be read.",
                "numpy is not installed.",
                "pip install 'farandole[profiler]'",
            )
        )
