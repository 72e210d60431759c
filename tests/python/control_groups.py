# SPDX-License-Identifier: Apache-2.0
"""Control groups of a test's own, v1 or v2, that throttle what joins them. They need root."""

from __future__ import annotations

import contextlib
import itertools
import os
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

_ROOT = Path("/sys/fs/cgroup")
_numbers = itertools.count()


@contextlib.contextmanager
def cpu_quota(*, quota_us: int, period_us: int) -> Iterator[Path]:
    """Processes that join have this time of a core in each period."""
    v1 = {"cpu.cfs_period_us": f"{period_us}", "cpu.cfs_quota_us": f"{quota_us}"}
    with _group("cpu", v1, "cpu", {"cpu.max": f"{quota_us} {period_us}"}) as group:
        yield group


@contextlib.contextmanager
def slow_reads(path: Path, *, bytes_per_s: int) -> Iterator[Path]:
    """Processes that join read that fast from the disk on which ``path`` lies."""
    disk = _disk_of(path)
    v1 = {"blkio.throttle.read_bps_device": f"{disk} {bytes_per_s}"}
    with _group("blkio", v1, "io", {"io.max": f"{disk} rbps={bytes_per_s}"}) as group:
        yield group


def join(group: Path) -> None:
    """Moves this process, with all of its threads."""
    (group / "cgroup.procs").write_text(f"{os.getpid()}")


@contextlib.contextmanager
def _group(
    v1_controller: str, v1: dict[str, str], v2_controller: str, v2: dict[str, str]
) -> Iterator[Path]:
    """Skips where the host or its rights do not allow it."""
    root, limits = _ROOT / v1_controller, v1
    if not root.is_dir():
        root, limits = _ROOT, v2
        controllers = _ROOT / "cgroup.subtree_control"
        if not controllers.is_file() or v2_controller not in controllers.read_text().split():
            pytest.skip(f"no control group of '{v2_controller}' may be made here")
    group = root / f"farandole-test-{os.getpid()}-{next(_numbers)}"
    try:
        group.mkdir()
    except OSError as error:
        pytest.skip(f"no control group may be made here: {error}")
    try:
        for name, text in limits.items():
            try:
                (group / name).write_text(text)
            except OSError as error:
                pytest.skip(f"'{name}' may not be set here: {error}")
        yield group
    finally:
        _remove(group)


def _remove(group: Path) -> None:
    """Processes that have just ended are in it for a moment more."""
    deadline_s = time.monotonic() + 10
    while True:
        try:
            return group.rmdir()
        except OSError:
            if time.monotonic() > deadline_s:
                raise
        time.sleep(0.01)


def _disk_of(path: Path) -> str:
    """Its numbers; those of the whole disk, where the path lies on a partition."""
    device = path.stat().st_dev
    folder = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}")
    if not folder.is_dir():
        pytest.skip(f"{path} lies on no disk")
    if (folder / "partition").exists():
        folder = folder.resolve().parent
    return (folder / "dev").read_text().strip()
