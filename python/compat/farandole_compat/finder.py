# SPDX-License-Identifier: Apache-2.0
"""Finds `import horovod` and the like in names/, unless the original is installed.

An installed original is never shadowed: it is imported, and a warning says so once. The .pth file
of this package installs the finder in every process, so this module imports nothing that Python has
not imported by itself.
"""

from __future__ import annotations

import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from importlib.machinery import ModuleSpec
    from types import ModuleType

FOLDER = os.path.join(os.path.dirname(__file__), "names")  # noqa: PTH118, PTH120
NAMES = frozenset(["horovod", "sparkdl", "smdistributed", "smdebug", "smppy", "smprof"])


class NameFinder:
    """The first of sys.meta_path."""

    def __init__(self) -> None:
        self._told: set[str] = set()

    def find_spec(
        self, name: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Where `name` is; None for what is not one of ours, and for an installed original."""
        del path  # names of the top level have none
        if name not in NAMES:
            return None
        if self._original(name, target) is not None:
            self._tell(name)
            return None
        from importlib.machinery import PathFinder

        return PathFinder.find_spec(name, [FOLDER])

    def _original(self, name: str, target: ModuleType | None) -> ModuleSpec | None:
        for finder in sys.meta_path:
            find_spec = getattr(finder, "find_spec", None)
            if finder is not self and find_spec is not None:
                spec: ModuleSpec | None = find_spec(name, None, target)
                # A folder without __init__.py is no library: often it is one of the script's own.
                if spec is not None and (spec.origin is not None or spec.loader is not None):
                    return spec
        return None

    def _tell(self, name: str) -> None:
        if name in self._told:
            return
        self._told.add(name)
        import warnings

        warnings.warn(
            f"farandole-compat: {name} itself is installed and is used; Farandole's stands back. "
            f"To run on Farandole: pip uninstall {name}",
            stacklevel=2,
        )


def install() -> None:
    """Once in a process, however often it is called."""
    if not any(isinstance(finder, NameFinder) for finder in sys.meta_path):
        sys.meta_path.insert(0, NameFinder())
