# SPDX-License-Identifier: Apache-2.0
"""Says what to do when another torch runs than the one Farandole was built against."""

from __future__ import annotations


def check(running: str, built: str) -> None:
    """Compare major and minor of two versions of torch; patch releases fit each other.

    Raises:
        ImportError: they differ, so that Farandole's C++ library would not fit torch's.
    """
    if running.split(".")[:2] == built.split(".")[:2]:
        return
    release = ".".join(built.split(".")[:2])
    raise ImportError(
        f"farandole was built against torch {built}, but torch {running} is running.\n"
        "why: torch's C++ interface changes between versions, and farandole is linked to it.\n"
        f"fix: pip install 'torch=={release}.*', or build farandole for this torch: "
        "pip install --no-build-isolation --force-reinstall --no-deps <farandole's source> "
        "[torch-version]"
    )
