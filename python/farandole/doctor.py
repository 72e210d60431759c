# SPDX-License-Identifier: Apache-2.0
"""What this installation is and can do here: the command `farandole doctor`."""

from __future__ import annotations

import ctypes
import json
import os
import platform
import re
import resource
import shutil
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist

import farandole
from farandole import _C, cgroup, job_secret
from farandole._build import TORCH_VERSION

SELF_TEST_RANKS = 2
SELF_TEST_DEADLINE_S = 60
SMALL_SHM_BYTES = 256 * 1024**2


@dataclass(frozen=True)
class Finding:
    """One line of the report; `ok` is None where there is nothing to judge."""

    section: str
    name: str
    value: str
    ok: bool | None = None


def diagnose(*, self_test: bool = True) -> list[Finding]:
    """Looks at everything; takes a few seconds, most of them for the self-test."""
    found = versions() + built() + usable() + limits() + variables()
    if self_test:
        found.append(run_self_test())
    return found


def main(*, as_json: bool) -> int:
    """Prints the report; returns 1 if something that Farandole needs is missing, else 0."""
    found = diagnose()
    healthy = all(finding.ok is not False for finding in found)
    if as_json:
        print(json.dumps({"ok": healthy, "findings": [asdict(each) for each in found]}, indent=2))
    else:
        print(text_of(found))
        print("\nready" if healthy else "\nNOT ready: see the lines marked with !")
    return 0 if healthy else 1


def text_of(found: list[Finding]) -> str:
    """The report for people: sections, names in one column, `!` before what is wrong."""
    width = max(len(finding.name) for finding in found)
    lines: list[str] = []
    section = ""
    for finding in found:
        if finding.section != section:
            section = finding.section
            lines += ["", section]
        mark = "!" if finding.ok is False else " "
        indent = "\n" + " " * (width + 4)
        lines.append(f"{mark} {finding.name:{width}}  {finding.value.replace(chr(10), indent)}")
    return "\n".join(lines[1:])


def versions() -> list[Finding]:
    """Farandole, torch (built against and running), Python, the compiler for C++ programs."""
    compiler = shutil.which("c++") or shutil.which("g++") or shutil.which("clang++")
    compiler_text = "none found; C++ programs need one, Python programs do not"
    if compiler:
        command = [compiler, "--version"]
        output = subprocess.run(command, capture_output=True, text=True, check=False).stdout
        compiler_text = output.partition("\n")[0] or compiler
    return [
        Finding("versions", "farandole", f"{farandole.__version__} in {package_folder()}"),
        Finding(
            "versions",
            "torch",
            f"{torch.__version__} is running, {TORCH_VERSION} was built against",
        ),
        Finding("versions", "Python", f"{platform.python_version()} ({sys.executable})"),
        Finding("versions", "system", f"{platform.system()} {platform.release()}"),
        Finding("versions", "compiler", compiler_text),
    ]


def built() -> list[Finding]:
    """The backends that this build holds, how to get the others, and what keeps one from use."""
    found = []
    for info in _C.backends():
        text = f"{'built' if info.built else 'not built'}: {info.detail}"
        obstacle = obstacle_to(info.name) if info.built else ""
        if obstacle:
            text += f"\nnot usable here: {obstacle}"
        found.append(Finding("backends", info.name, text))
    return found


def obstacle_to(backend: str) -> str:
    """Why this process cannot use a backend; empty if nothing is known to be against it."""
    try:
        return _C.obstacle_to(backend)
    except farandole.InvalidArgument:  # a setting is wrong: the self-test reports it
        return ""


def usable() -> list[Finding]:
    """Whether the kernel gives what shared memory needs."""
    memfd, shm = check_memfd(), check_shm()
    pages_found = memfd.ok or shm.ok  # either will do
    if pages_found:
        memfd, shm = (Finding(each.section, each.name, each.value) for each in (memfd, shm))
    return [memfd, shm, check_futex(), check_pidfd()]


def check_memfd() -> Finding:
    """Anonymous shared pages, the first choice."""
    try:
        os.close(os.memfd_create("farandole-doctor"))
    except OSError as error:
        return Finding("usable", "memfd", f"no ({error.strerror}); /dev/shm is used", ok=False)
    return Finding("usable", "memfd", "ok", ok=True)


def check_shm() -> Finding:
    """The tmpfs that serves where memfd is refused."""
    try:
        status = os.statvfs("/dev/shm")
        tempfile.TemporaryFile(dir="/dev/shm").close()
    except OSError as error:
        return Finding("usable", "/dev/shm", f"no ({error.strerror})", ok=False)
    size, free = (blocks * status.f_frsize for blocks in (status.f_blocks, status.f_bavail))
    value = f"{bytes_text(free)} free of {bytes_text(size)}"
    if size < SMALL_SHM_BYTES:
        value += "; small, but used only where memfd is refused or FARANDOLE_SEGMENTS=tmpfile"
    return Finding("usable", "/dev/shm", value, ok=True)


def check_futex() -> Finding:
    """The system call by which waiting ranks sleep."""
    number = {"x86_64": 202, "aarch64": 98}.get(platform.machine())
    if number is None:
        return Finding("usable", "futex", f"not known on {platform.machine()}")
    wake, word = 1, ctypes.c_uint32(0)
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.syscall(number, ctypes.byref(word), wake, 1, None, None, 0) < 0:
        return Finding("usable", "futex", f"no ({os.strerror(ctypes.get_errno())})", ok=False)
    return Finding("usable", "futex", "ok", ok=True)


def check_pidfd() -> Finding:
    """How the death of a rank is seen; without it /proc is read."""
    try:
        os.close(os.pidfd_open(os.getpid()))
    except OSError as error:
        return Finding("usable", "pidfd", f"no ({error.strerror}); dead ranks are found in /proc")
    return Finding("usable", "pidfd", "ok", ok=True)


def limits() -> list[Finding]:
    """What bounds memory, descriptors and cores."""
    cores = f"{len(os.sched_getaffinity(0))} of {os.cpu_count()} may be used"
    quota = cgroup.nearest_value("cpu.max")
    if quota and not quota.startswith("max"):
        share, period = map(int, quota.split())
        cores += f", for {share / period:g} cores' worth of time"
    names = ("memory.max", "memory.limit_in_bytes")
    memory = next(filter(None, map(cgroup.nearest_value, names)), "max")
    unlimited = memory == "max" or int(memory) >= 2**60
    return [
        Finding("limits", "cores", cores),
        Finding("limits", "memory", f"{bytes_text(available_memory())} available"),
        Finding("limits", "cgroup memory", "unlimited" if unlimited else bytes_text(int(memory))),
        Finding("limits", "ulimit -v", limit_text(resource.RLIMIT_AS)),
        Finding("limits", "ulimit -l", limit_text(resource.RLIMIT_MEMLOCK)),
        Finding("limits", "ulimit -n", limit_text(resource.RLIMIT_NOFILE, unit="descriptors")),
    ]


def variables() -> list[Finding]:
    """The FARANDOLE_* variables that are set; docs/configuration.md explains them."""
    found = sorted(item for item in os.environ.items() if item[0].startswith("FARANDOLE_"))
    shown = {name: "set, not shown" if name == job_secret.VARIABLE else v for name, v in found}
    return [Finding("variables", name, value) for name, value in shown.items()] or [
        Finding("variables", "FARANDOLE_*", "none is set")
    ]


def run_self_test() -> Finding:
    """Starts ranks that all-reduce and check the sum; ends them at a deadline."""
    code = "import sys; from farandole import doctor; doctor.self_test_rank(*sys.argv[1:])"
    section, name = "self-test", f"{SELF_TEST_RANKS} ranks"
    with tempfile.TemporaryDirectory(prefix="farandole-doctor-") as folder:
        processes = [
            subprocess.Popen(
                [sys.executable, "-c", code, folder, str(rank)],
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
            )
            for rank in range(SELF_TEST_RANKS)
        ]
        deadline = time.monotonic() + SELF_TEST_DEADLINE_S
        try:
            outputs = [
                process.communicate(timeout=max(0.1, deadline - time.monotonic()))[0].strip()
                for process in processes
            ]
        except subprocess.TimeoutExpired:
            return Finding(section, name, f"not finished after {SELF_TEST_DEADLINE_S} s", ok=False)
        finally:
            for process in processes:
                process.kill()
                process.wait()
    failed = [
        f"rank {rank} exited with {process.returncode}:\n{output[-2000:]}"
        for rank, (process, output) in enumerate(zip(processes, outputs, strict=True))
        if process.returncode
    ]
    if failed:
        return Finding(section, name, "\n".join(failed), ok=False)
    return Finding(section, name, outputs[0].rpartition("\n")[2], ok=True)


def self_test_rank(folder: str, rank_text: str) -> None:
    """What each rank of the self-test runs; rank 0 prints the line of the report."""
    rank = int(rank_text)
    dist.init_process_group(
        "farandole",
        init_method=f"file://{folder}/store",
        rank=rank,
        world_size=SELF_TEST_RANKS,
        timeout=timedelta(seconds=SELF_TEST_DEADLINE_S / 2),
    )
    ones = torch.full((256 * 1024,), rank + 1.0)
    dist.all_reduce(ones)
    if not bool((ones == SELF_TEST_RANKS * (SELF_TEST_RANKS + 1) / 2).all()):
        sys.exit("all_reduce gave a wrong sum")
    seconds = []
    for _ in range(20):
        begin = time.perf_counter()
        dist.all_reduce(ones)
        seconds.append(time.perf_counter() - begin)
    dist.destroy_process_group()
    if rank == 0:
        print(f"ok, all_reduce of 1 MiB is right and took {min(seconds) * 1e6:.0f} us at best")


def package_folder() -> Path:
    """Where the package is installed."""
    return Path(farandole.__file__).resolve().parent


def available_memory() -> int:
    """Bytes that the kernel deems free to use."""
    found = re.search(r"MemAvailable:\s+(\d+) kB", Path("/proc/meminfo").read_text())
    return int(found[1]) * 1024 if found else 0


def limit_text(kind: int, unit: str = "") -> str:
    """A soft limit of this process."""
    value = resource.getrlimit(kind)[0]
    if value == resource.RLIM_INFINITY:
        return "unlimited"
    return f"{value} {unit}" if unit else bytes_text(value)


def bytes_text(count: int) -> str:
    """512 B, 64 MiB, 1.5 GiB."""
    for power, unit in ((3, "GiB"), (2, "MiB"), (1, "KiB")):
        if count >= 1024**power:
            return f"{count / 1024**power:.3g} {unit}"
    return f"{count} B"
