# SPDX-License-Identifier: Apache-2.0
"""Tells scikit-build-core which torch a wheel needs: the release that it is built against.

torch's C++ interface changes between minor releases, not between patch releases of one. A source
distribution needs none yet; it becomes a wheel where torch is.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

OLDEST = (2, 11)
FIND = (
    "from importlib.util import find_spec; torch = find_spec('torch'); "
    "print(torch.submodule_search_locations[0] if torch else '')"
)


def torch_folder() -> str:
    """Where the torch of this Python is, or "".

    It is looked up, not imported, which takes seconds. Inside pip's isolated build PYTHONPATH hides
    the environment's own packages, which the second try, with -E, sees.
    """
    for option in ("-B", "-E"):
        command = [sys.executable, option, "-c", FIND]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if found := done.stdout.strip():
            return found
    return ""


def torch_version() -> str:
    """Its version, as "2.11.0+cpu", or ""."""
    file = Path(torch_folder() or "nowhere", "version.py")
    text = file.read_text() if file.exists() else ""
    found = re.search(r"^__version__ = ['\"]([^'\"]+)", text, re.MULTILINE)
    return found[1] if found else ""


def requirement(version: str) -> str:
    """What a wheel that is built against it needs; ends the build with one line if it cannot be."""
    found = re.match(r"(\d+)\.(\d+)", version)
    if found and (int(found[1]), int(found[2])) >= OLDEST:
        return f"torch=={found[1]}.{found[2]}.*"
    oldest = ".".join(map(str, OLDEST))
    sys.exit(
        f"farandole is built against the torch of {sys.executable}, which has "
        f"{'torch ' + version if version else 'none'}; run: pip install 'torch>={oldest}', "
        "then this again (an isolated build sees the torch of the environment that pip is in)."
    )


class TorchRequirement:
    """The plugin for ``[[tool.dynamic-metadata]]``."""

    def build_state(self, build_state: str) -> None:
        """Called first."""
        self._is_source = build_state == "sdist"

    def dynamic_wheel(self, settings: Mapping[str, Any]) -> dict[str, bool]:
        """A wheel says more than the source distribution that it is made of."""
        del settings
        return {"dependencies": True}

    def dynamic_metadata(
        self, settings: Mapping[str, Any], project: Mapping[str, Any]
    ) -> dict[str, Any]:
        """The fields of ``[project]`` that this provides."""
        del settings, project
        if self._is_source:
            return {"dependencies": [f"torch>={'.'.join(map(str, OLDEST))}"]}
        return {"dependencies": [requirement(torch_version())]}
