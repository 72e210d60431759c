# SPDX-License-Identifier: Apache-2.0
"""Checks what every source promises: its licence line, and that it includes no later layer.

    python tests/lint/layering.py    # prints one line for each violation; fails if there is one

Layers, each of which may include itself and those before it: comm, process_group, data, ddp, optim,
amp, checkpoint, profile, debugger, python. src/kernels and files directly in src/ and
include/farandole/ belong to comm, except the umbrella header farandole.h, which may include all.
comm includes nothing of torch. Only src/comm/backends.cpp asks which backends were built.
"""

import re
import sys
from collections.abc import Iterator
from pathlib import Path

REPOSITORY = Path(__file__).parents[2]
LAYERS = [
    "comm",
    "process_group",
    "data",
    "ddp",
    "optim",
    "amp",
    "checkpoint",
    "profile",
    "debugger",
    "python",
]
UMBRELLA = Path("include/farandole/farandole.h")
BACKENDS = Path("src/comm/backends.cpp")

LICENCE = "SPDX-License-Identifier: Apache-2.0"
INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^">]+)[">]', re.MULTILINE)
TORCH_HEADER = re.compile(r"^(torch|ATen|c10|caffe2|pybind11)/|^Python\.h$")
BACKEND_CONDITION = re.compile(r"^\s*#\s*(if|ifdef|ifndef|elif)\b.*\bFARANDOLE_HAS_", re.MULTILINE)

CPP_FOLDERS = ["include", "src", "python/bindings", "tests", "benchmarks", "examples"]
SOURCE_NAMES = ["*.h", "*.cpp", "*.py", "*.cmake", "*.cmake.in", "CMakeLists.txt"]
LICENSED_FOLDERS = [*CPP_FOLDERS, "python", "cmake", ".ci"]


def layer_of(path: Path) -> str | None:
    """The layer of a file, its path relative to the repository; None if it has none."""
    match path.parts:
        case ("python", "bindings", *_):
            return "python"
        case ("include", "farandole", *rest) | ("src", *rest):
            return "comm" if len(rest) == 1 or rest[0] == "kernels" else rest[0]
    return None


def layer_of_include(include: str) -> str | None:
    """The layer of an include as it is written; None for headers that are not Farandole's."""
    own = include.removeprefix("farandole/")
    first, *rest = own.split("/")
    if rest:
        return first if first in LAYERS else "comm" if first == "kernels" else None
    return "comm" if include.startswith("farandole/") else None


def include_violations(path: Path, text: str) -> Iterator[str]:
    """Includes of a later layer, and of torch in comm."""
    layer = layer_of(path)
    if layer is None or path == UMBRELLA:
        return
    if layer not in LAYERS:
        yield f"{path}: the folder '{layer}' is no layer; name it in {Path(__file__).name}"
        return
    for include in INCLUDE.findall(text):
        target = layer_of_include(include)
        if include == "farandole/farandole.h" and layer != "python":
            yield f"{path}: the umbrella header is for users; include what is needed"
        elif target and LAYERS.index(target) > LAYERS.index(layer):
            yield f"{path}: layer {layer} includes {include} of the later layer {target}"
        elif layer == "comm" and TORCH_HEADER.match(include):
            yield f"{path}: layer comm includes {include}, but it must do without torch"


def violations(root: Path) -> list[str]:
    """All violations below `root`, sorted; each names its file."""
    found: list[str] = []
    for path in sorted(source_files(root)):
        text = (root / path).read_text(encoding="utf-8")
        if LICENCE not in "".join(text.splitlines(keepends=True)[:2]):
            found.append(f"{path}: does not begin with '{LICENCE}'")
        if path.suffix not in (".h", ".cpp"):
            continue
        found.extend(include_violations(path, text))
        if path != BACKENDS and BACKEND_CONDITION.search(text):
            found.append(f"{path}: asks for FARANDOLE_HAS_..., which only {BACKENDS} may")
    return found


def source_files(root: Path) -> set[Path]:
    """Files that must begin with the licence line, relative to `root`."""
    files = {root / name for name in ("CMakeLists.txt", "Makefile", "pyproject.toml")}
    for folder in LICENSED_FOLDERS:
        files.update(path for name in SOURCE_NAMES for path in (root / folder).rglob(name))
    return {path.relative_to(root) for path in files if path.exists()}


if __name__ == "__main__":
    broken = violations(REPOSITORY)
    print("\n".join(broken) or "The layers are in order.")
    sys.exit(1 if broken else 0)
