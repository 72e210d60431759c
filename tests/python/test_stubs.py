# SPDX-License-Identifier: Apache-2.0
"""The stub _C.pyi is what pybind11-stubgen makes of the module; run this file to renew it."""

from __future__ import annotations

import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

STUB = Path(__file__).parents[2] / "python" / "farandole" / "_C.pyi"
HEADER = "# SPDX-License-Identifier: Apache-2.0\n# ruff: noqa\n# fmt: off\n"


def generated() -> str:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pybind11_stubgen", "farandole._C", "-o", folder]
        subprocess.run(command, check=True, capture_output=True)
        stub = Path(folder) / "farandole" / "_C.pyi"
        lines = [line.rstrip() for line in stub.read_text().split("\n")]
        return HEADER + "\n".join(lines)


def test_the_stub_is_what_the_module_says() -> None:
    from farandole import _C

    if f"torch_version_built: str = {_C.torch_version_built!r}" not in STUB.read_text():
        pytest.skip("the stub is of another torch, whose pybind11 writes types differently")
    assert generated() == STUB.read_text(), f"fix: python {Path(__file__).name}"


if __name__ == "__main__":
    STUB.write_text(generated())
