# SPDX-License-Identifier: Apache-2.0
"""The logger."""

from logging import Logger

from farandole.logs import LOGGER


def get_logger(name: str = "smdebug") -> Logger:
    """Farandole's, whatever the name."""
    del name
    return LOGGER
