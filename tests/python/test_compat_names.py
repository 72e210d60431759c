# SPDX-License-Identifier: Apache-2.0
"""Import names of other libraries: found in names/, unless the original is installed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.system

REPOSITORY = Path(__file__).parents[2]

FOUND = """
import warnings
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    import horovod
    import horovod
import farandole_compat.finder as finder
finder.install()
finder.install()
import sys
print(sum(isinstance(each, finder.NameFinder) for each in sys.meta_path))
print(horovod.__file__)
for each in caught:
    print("warning:", each.message)
"""


def run(folder: Path, program: str = FOUND) -> list[str]:
    """The lines that a program in `folder` prints, which may import what lies there."""
    path = folder / "program.py"
    path.write_text(program)
    done = subprocess.run(
        [sys.executable, str(path)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_name_is_found_without_an_import_of_ours(tmp_path: Path) -> None:
    count, place, *warnings = run(tmp_path)
    assert count == "1"
    assert place.endswith("farandole_compat/names/horovod/__init__.py")
    assert not warnings


def test_an_installed_original_is_used_and_told_once(tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "__init__.py").write_text("is_original = True\n")
    _, place, *warnings = run(tmp_path)
    assert place == str(tmp_path / "horovod" / "__init__.py")
    assert len(warnings) == 1
    assert "horovod itself is installed and is used" in warnings[0]


def test_a_folder_that_is_no_package_is_no_original(tmp_path: Path) -> None:
    (tmp_path / "horovod").mkdir()
    (tmp_path / "horovod" / "train.py").write_text("")
    _, place, *warnings = run(tmp_path)
    assert place.endswith("farandole_compat/names/horovod/__init__.py")
    assert not warnings


def test_other_names_are_left_alone(tmp_path: Path) -> None:
    program = """
import importlib.util
print(importlib.util.find_spec("horovods"), importlib.util.find_spec("json").origin)
"""
    (line,) = run(tmp_path, program)
    assert line.startswith("None ")
    assert line.endswith("json/__init__.py")


def test_the_start_of_python_imports_nothing_large(tmp_path: Path) -> None:
    program = "import sys; print('farandole_compat.finder' in sys.modules, 'torch' in sys.modules)"
    assert run(tmp_path, program) == ["True False"]


def test_the_finder_imports_what_python_has_imported_by_itself() -> None:
    program = (
        "import os, sys; before = set(sys.modules); sys.path.insert(0, 'python/compat');"
        "import farandole_compat.finder; print(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run(
        [sys.executable, "-S", "-c", program],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=True,
    )
    own = ["__future__", "farandole_compat", "farandole_compat.finder"]
    assert done.stdout.strip() == str(own)
