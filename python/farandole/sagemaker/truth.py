# SPDX-License-Identifier: Apache-2.0
"""Options of scripts that are true or false, as hyperparameters are text."""

from __future__ import annotations

import argparse

_TRUE = ("yes", "true", "t", "y", "1")
_FALSE = ("no", "false", "f", "n", "0")


def str2bool(value: str | bool) -> bool:
    """What a text means; for ``type=`` of argparse.

    Raises:
        argparse.ArgumentTypeError: it means neither.
    """
    text = str(value).lower()
    if text not in (*_TRUE, *_FALSE):
        raise argparse.ArgumentTypeError(f"'{value}' is neither true nor false")
    return text in _TRUE
