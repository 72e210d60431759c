# SPDX-License-Identifier: Apache-2.0
"""The repository keeps the order of its layers, and the checker sees each way to break it."""

from pathlib import Path

import pytest

from layering import REPOSITORY, violations

LICENCE = "// SPDX-License-Identifier: Apache-2.0\n"


def write(root: Path, path: str, text: str) -> None:
    """Writes one file of a made-up repository."""
    (root / path).parent.mkdir(parents=True, exist_ok=True)
    (root / path).write_text(text, encoding="utf-8")


def test_repository_keeps_the_order_of_its_layers() -> None:
    assert violations(REPOSITORY) == []


@pytest.mark.parametrize(
    ("path", "include"),
    [
        ("src/comm/store.cpp", '"farandole/comm/store.h"'),
        ("src/comm/shm/staging.cpp", '"farandole/error.h"'),
        ("src/comm/shm/staging.h", '"comm/shm/system/segment.h"'),
        ("src/ddp/reducer.cpp", '"farandole/process_group/process_group.h"'),
        ("src/ddp/reducer.cpp", "<torch/csrc/distributed/c10d/Backend.hpp>"),
        ("include/farandole/farandole.h", '"farandole/amp/grad_scaler.h"'),
        ("python/bindings/module.cpp", '"farandole/farandole.h"'),
    ],
)
def test_earlier_layers_may_be_included(tmp_path: Path, path: str, include: str) -> None:
    write(tmp_path, path, LICENCE + f"#include {include}\n")
    assert violations(tmp_path) == []


@pytest.mark.parametrize(
    ("path", "line", "named"),
    [
        (
            "include/farandole/comm/types.h",
            '#include "farandole/process_group/work.h"',
            "process_group",
        ),
        ("src/error.cpp", "#include <farandole/ddp/reducer.h>", "ddp"),
        ("src/ddp/reducer.cpp", '#include "farandole/optim/shard_plan.h"', "optim"),
        ("src/ddp/reducer.cpp", '#include "optim/fused_kernels.h"', "optim"),
        ("src/optim/rules/adam.cpp", '#include "farandole/amp/autocast.h"', "amp"),
        ("src/comm/shm/system/segment.cpp", "#include <torch/types.h>", "without torch"),
        ("src/comm/shm/system/segment.cpp", "#include <c10/util/Half.h>", "without torch"),
        ("src/config.cpp", "  #  include <ATen/core/Tensor.h>", "without torch"),
        ("src/ddp/reducer.cpp", '#include "farandole/farandole.h"', "umbrella"),
        ("src/profiler/trace.cpp", '#include "farandole/error.h"', "no layer"),
    ],
)
def test_a_later_layer_is_named(tmp_path: Path, path: str, line: str, named: str) -> None:
    write(tmp_path, path, LICENCE + line + "\n")
    assert [named in text and path in text for text in violations(tmp_path)] == [True]


@pytest.mark.parametrize("condition", ["#if FARANDOLE_HAS_MPI", "#ifdef FARANDOLE_HAS_NCCL"])
def test_only_one_file_asks_which_backends_were_built(tmp_path: Path, condition: str) -> None:
    write(tmp_path, "src/comm/backends.cpp", LICENCE + condition + "\n#endif\n")
    assert violations(tmp_path) == []
    write(tmp_path, "src/comm/communicator.cpp", LICENCE + condition + "\n#endif\n")
    assert ["communicator.cpp" in violation for violation in violations(tmp_path)] == [True]


@pytest.mark.parametrize("path", ["src/error.cpp", "python/farandole/__init__.py", "Makefile"])
def test_a_missing_licence_line_is_seen(tmp_path: Path, path: str) -> None:
    write(tmp_path, path, "\n\n\n" + LICENCE)
    assert [path in violation for violation in violations(tmp_path)] == [True]
