# SPDX-License-Identifier: Apache-2.0
"""What is where no checkpoint is."""

from __future__ import annotations

import logging
from itertools import islice
from pathlib import Path

_MOST_NAMED = 3

_logger = logging.getLogger(__name__)


def tell_of_start(path: str) -> None:
    """Log that a program starts anew, and what it may have meant. Local."""
    names = [each.parent.name for each in _named(path, "*/.metadata")]
    if names:
        _logger.warning(
            "resume_or_start() starts anew: there is no checkpoint at '%s', but %s in it %s of "
            "torch.distributed.checkpoint. To go on from one, pass its own path.",
            path,
            ", ".join(repr(name) for name in names),
            "is" if len(names) == 1 else "are",
        )
    elif _named(path, "*.distcp"):
        _logger.warning(
            "resume_or_start() starts anew: '%s' has files of torch.distributed.checkpoint, but no "
            ".metadata, which a save writes last.",
            path,
        )
    else:
        _logger.info("resume_or_start() starts anew: there is no checkpoint at '%s'.", path)


def _named(path: str, pattern: str) -> list[Path]:
    return list(islice(Path(path).glob(pattern), _MOST_NAMED))
