# SPDX-License-Identifier: Apache-2.0
"""What SageMaker's libraries have and Farandole does not."""

from __future__ import annotations

from farandole.errors import NotSupported, sentences


class AbsentModule(NotSupported, ImportError):
    """A module that is not offered: NotSupported, and for programs that try it an ImportError."""


def absent(name: str, why: str, instead: str) -> AbsentModule:
    """What a module raises that is not offered.

    Args:
        name: Of the module.
        why: It is not; half a sentence.
        instead: What to do natively; half a sentence.
    """
    return AbsentModule(str(not_offered(name, why, instead)))


def not_offered(name: str, why: str, instead: str) -> NotSupported:
    """What a class, function or option raises that is not offered; as absent()."""
    return NotSupported(
        sentences("sagemaker-absent", f"{name} is not offered.", f"{why}.", f"{instead}.")
    )
