# SPDX-License-Identifier: Apache-2.0
"""The plug-in that knows NCCL: where it is built, what it is linked to, and builds without it."""

from __future__ import annotations

import re
import struct
import subprocess
import sys
from pathlib import Path

import farandole
import pytest
from farandole import doctor

import sim
from cmake_projects import BUILD_DEADLINE_S, output_of

SOURCE = Path(__file__).parents[2]
PLUGIN = Path(farandole.__file__).parent / "lib" / "libfarandole_cuda.so"
needs_plugin = pytest.mark.skipif(not PLUGIN.exists(), reason="built without nccl.h: no plug-in")


def of_cache(name: str) -> str:
    """What CMake has found when this package was built; empty if nothing."""
    cache = sim.BUILD / "CMakeCache.txt"
    found = re.search(rf"^{name}:\w+=(.*)$", cache.read_text(), re.MULTILINE)
    return "" if found is None or found[1].endswith("NOTFOUND") else found[1]


def nccl() -> farandole._C.BackendInfo:
    (info,) = [info for info in farandole._C.backends() if info.name == "nccl"]
    return info


def test_it_is_built_where_the_headers_are() -> None:
    headers = of_cache("FARANDOLE_NCCL_INCLUDE_DIR") and of_cache("FARANDOLE_CUDA_INCLUDE_DIR")
    wanted = of_cache("FARANDOLE_CUDA") != "OFF"
    has_headers = bool(headers) and of_cache("farandole_nccl_compiles") == "1"
    assert PLUGIN.exists() == (wanted and has_headers)
    assert nccl().built == PLUGIN.exists()


@pytest.mark.system
@needs_plugin
def test_it_is_linked_to_no_library_of_nvidia() -> None:
    needed = re.findall(r"NEEDED.*\[(.*)\]", output_of("readelf", "-d", PLUGIN, deadline_s=30))
    assert "libfarandole_comm.so" in needed
    assert not [name for name in needed if re.search("cuda|nccl|nvidia|torch", name)]
    symbols = output_of("nm", "-D", "--undefined-only", PLUGIN, deadline_s=30)
    assert "dlsym" in symbols
    assert not re.findall(r"U ((?:nccl|cuda|cu)[A-Z]\w*)", symbols)


PTX, CUBIN = 1, 2  # kinds of code in a fatbin


def code_for_gpus() -> set[tuple[int, int]]:
    """Kind and compute capability of all code in the plug-in, by the headers of its fatbin."""
    image = PLUGIN.read_bytes()
    start = image.find(struct.pack("<I", 0xBA55ED50))
    if start < 0:
        return set()
    _, _, header, size = struct.unpack_from("<IHHQ", image, start)
    found, at, end = set(), start + header, start + header + size
    while at < end:
        kind, _, header, size = struct.unpack_from("<HHIQ", image, at)
        found.add((kind, *struct.unpack_from("<I", image, at + 28)))
        at += header + size
    return found


@needs_plugin
def test_it_has_kernels_where_nvcc_is() -> None:
    if not of_cache("FARANDOLE_NVCC"):
        assert code_for_gpus() == set()
        return
    cubins = {(CUBIN, each) for each in (80, 86, 89, 90, 100, 120)}
    assert code_for_gpus() == cubins | {(PTX, 75), (PTX, 120)}


WITHOUT_GPU = """
import ctypes, sys
import torch

def libraries():
    with open("/proc/self/maps") as maps:
        return {line.split("/")[-1].strip() for line in maps if "/" in line}

before = libraries()
import farandole
group = farandole.init_process_group()
tensor = torch.ones(3)
farandole.all_reduce(tensor)
farandole.destroy()
assert "libfarandole_cuda.so" not in libraries()  # nobody has asked for it
ctypes.CDLL(sys.argv[1])
new = sorted(each for each in libraries() - before if "nccl" in each or "cuda" in each)
print(*new)
"""


@pytest.mark.system
@needs_plugin
def test_it_is_loaded_without_a_driver_and_loads_nothing() -> None:
    done = output_of(sys.executable, "-c", WITHOUT_GPU, PLUGIN, deadline_s=100)
    assert done.split() == ["libfarandole_cuda.so"]


def test_the_doctor_says_whether_nccl_can_be_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FARANDOLE_NCCL_LIBRARY", "/nowhere/libnccl.so.2")
    (finding,) = [finding for finding in doctor.built() if finding.name == "nccl"]
    if PLUGIN.exists():
        assert finding.value.startswith("built: ")
        assert "\nnot usable here: " in finding.value
        assert finding.value.count("\n") == 1
    else:
        assert finding.value.startswith("not built: ")
        assert "\n" not in finding.value
    assert finding.ok is None  # the CPU needs none of it


# Without what a machine with a CUDA Toolkit has.


def configure(folder: Path, *options: str) -> subprocess.CompletedProcess[str]:
    hidden = {of_cache(f"FARANDOLE_{name}_INCLUDE_DIR") for name in ("CUDA", "NCCL")} - {""}
    hidden |= {"/usr/include", "/usr/local/include", "/usr/local/cuda/include"}
    hidden |= {str(Path(path).resolve()) for path in hidden}
    command = ["cmake", "-S", SOURCE, "-B", folder, "-DFARANDOLE_TORCH=OFF", "-DFARANDOLE_MPI=OFF"]
    command += [f"-DCMAKE_IGNORE_PATH={';'.join(sorted(hidden))}"]
    command += ["-DCMAKE_CXX_FLAGS_RELEASE=-O0", *options]  # compiles sooner
    path = Path(sys.executable).parent
    return subprocess.run(
        ["env", f"PATH={path}:/usr/local/bin:/usr/bin:/bin", *command],
        capture_output=True,
        text=True,
        timeout=100,
        check=False,
    )


PROGRAM = """
#include <farandole/comm/backends.h>
#include <farandole/error.h>

#include <cstdio>

int main() {
  using namespace farandole;
  for (const auto& info : comm::backends()) std::printf("%s %d\\n", info.name.c_str(), info.built);
  std::printf("%s\\n", comm::obstacle_to("nccl", Config()).c_str());
}
"""


@pytest.mark.system
def test_a_build_without_the_headers_works_and_says_so(tmp_path: Path) -> None:
    done = configure(tmp_path / "build", "-G", "Ninja")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "building without the NCCL plug-in: no cuda_runtime.h, or no nccl.h" in done.stdout
    assert "cuda" not in (tmp_path / "build" / "compile_commands.json").read_text()
    library = tmp_path / "build" / "src"
    target = ["--target", "farandole_comm"]
    output_of("cmake", "--build", tmp_path / "build", *target, deadline_s=BUILD_DEADLINE_S)
    assert not (library / "libfarandole_cuda.so").exists()

    (tmp_path / "main.cpp").write_text(PROGRAM)
    flags = ["-std=c++17", f"-I{SOURCE / 'include'}", f"-L{library}", f"-Wl,-rpath,{library}"]
    program = tmp_path / "main"
    compiling = ["c++", *flags, tmp_path / "main.cpp", "-lfarandole_comm", "-o", program]
    output_of(*compiling, deadline_s=100)
    lines = output_of(program, deadline_s=30).splitlines()
    assert lines[:-1] == ["tcp 1", "shm 1", "mpi 0", "nccl 0"]
    assert "its plug-in cannot be loaded" in lines[-1]
    assert "libfarandole_cuda.so" in lines[-1]


@pytest.mark.system
def test_a_build_that_demands_the_plugin_names_what_is_missing(tmp_path: Path) -> None:
    done = configure(tmp_path, "-DFARANDOLE_CUDA=ON")
    assert done.returncode != 0
    text = " ".join(done.stderr.split())  # CMake wraps it
    assert "nccl.h of NCCL 2.27 or newer" in text
    assert "-DFARANDOLE_CUDA=OFF" in text
