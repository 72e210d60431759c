# SPDX-License-Identifier: Apache-2.0
"""The logger "farandole", which gets what the C++ library logs.

FARANDOLE_LOG says which levels there are. Until the program gives this logger or the root logger a
handler, lines go to standard error.
"""

from __future__ import annotations

import logging
import os
import sys

LOGGER = logging.getLogger("farandole")
_LEVELS = {
    "error": logging.ERROR,
    "warning": logging.WARNING,
    "info": logging.INFO,
    "debug": logging.DEBUG,
}


class UntilThereIsAnother(logging.Handler):
    """Writes lines to standard error as long as no other handler gets them."""

    def emit(self, record: logging.LogRecord) -> None:
        """Write "farandole INFO: text"."""
        others = [handler for handler in LOGGER.handlers if handler is not self]
        if sys.stderr is None or others or (LOGGER.propagate and logging.getLogger().handlers):
            return
        try:
            sys.stderr.write(f"farandole {record.levelname}: {record.getMessage()}\n")
            sys.stderr.flush()
        except (OSError, ValueError):
            self.handleError(record)


def set_up() -> None:
    """Done by ``import farandole``. More than once is harmless."""
    if any(isinstance(handler, UntilThereIsAnother) for handler in LOGGER.handlers):
        return
    if LOGGER.level == logging.NOTSET:
        LOGGER.setLevel(_LEVELS.get(os.environ.get("FARANDOLE_LOG", ""), logging.INFO))
    LOGGER.addHandler(UntilThereIsAnother())
