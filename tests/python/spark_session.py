# SPDX-License-Identifier: Apache-2.0
"""A Spark cluster of two workers on this host, which are JVMs of their own."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

_FAST = "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC"  # JVMs that live for a minute
_LAUNCHERS = ("RANK", "WORLD_SIZE", "LOCAL_RANK", "MASTER_", "OMP_", "SPARK_", "PYSPARK_")


def cluster(folder: Path) -> Iterator[Any]:
    """Its session, until the generator ends; `folder` keeps what the workers write."""
    _check_java()
    from pyspark.sql import SparkSession

    before = dict(os.environ)
    for name in [name for name in os.environ if name.startswith(_LAUNCHERS)]:
        del os.environ[name]
    os.environ.update(
        SPARK_LOCAL_IP="127.0.0.1",
        SPARK_WORKER_DIR=str(folder / "workers"),
        SPARK_LOCAL_DIRS=str(folder / "local"),
        PYSPARK_PYTHON=sys.executable,
    )
    builder = SparkSession.builder.master("local-cluster[2,1,1024]")
    for name, value in {
        "spark.ui.enabled": "false",
        "spark.ui.showConsoleProgress": "false",
        "spark.driver.extraJavaOptions": _FAST,
        "spark.executor.extraJavaOptions": _FAST,
    }.items():
        builder = builder.config(name, value)
    session = builder.getOrCreate()
    session.sparkContext.setLogLevel("OFF")
    os.environ.clear()
    os.environ.update(before)
    yield session
    session.stop()


def _check_java() -> None:
    """Skips where there is no Java, but not in CI, which installs it."""
    if shutil.which("java") or os.environ.get("JAVA_HOME"):
        return
    assert not os.environ.get("CI"), "CI has no Java: .ci/system-packages installs it"
    pytest.skip("Java is not installed (apt-get install openjdk-17-jre-headless)")
