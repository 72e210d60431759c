# SPDX-License-Identifier: Apache-2.0
"""The lanes: libraries that run collectives, and how each is started."""

from dataclasses import dataclass
from importlib.util import find_spec

from benchmarks.collectives.operations import Operation
from benchmarks.harness import ranks

SYMMETRIC, TORCH, GLOO, OPENMPI = "farandole_symmetric", "farandole_torch", "gloo_torch", "openmpi"
OUR_MPI = "farandole_mpi"  # MpiCommunicator, to be compared with OPENMPI


@dataclass(frozen=True)
class Lane:
    """One way to do an operation. Lanes with the same `process` share their ranks."""

    name: str  # in the results
    label: str  # in the plot and on the page
    short: str  # in tables
    process: str
    symmetric: bool = False

    def has(self, operation: Operation) -> bool:
        """Whether this lane differs from others in `operation`."""
        return operation.symmetric or not self.symmetric


LANES = {
    each.name: each
    for each in (
        Lane(SYMMETRIC, "Farandole C++, symmetric memory", "C++ sym.", "cpp", symmetric=True),
        Lane("farandole_ordinary", "Farandole C++, ordinary memory", "C++ ord.", "cpp"),
        Lane(TORCH, "Farandole through torch", "torch", "farandole"),
        Lane(OUR_MPI, "Farandole C++ on MPI", "C++ MPI", "cpp_mpi"),
        Lane(OPENMPI, "OpenMPI through mpi4py", "OpenMPI", "openmpi"),
        Lane(GLOO, "gloo through torch", "gloo", "gloo"),
    )
}


def commands_of(process: str) -> ranks.Commands:
    """Raises UnavailableError if a library is missing."""
    if process == "cpp":
        return ranks.commands_of_program("farandole_bench_collectives")
    if process == "cpp_mpi":
        program = "farandole_bench_collectives"
        if not ranks.find_program(program).parents[1].joinpath("src/libfarandole_mpi.so").exists():
            raise ranks.UnavailableError("Farandole is built without MPI")
        return ranks.commands_of_program_in_mpirun(program, "FARANDOLE_BACKEND=mpi")
    if process == "openmpi":
        return ranks.commands_of_mpirun("collectives.mpi_worker")
    if process != "gloo" and not find_spec(process):
        raise ranks.UnavailableError(f"{process} is not installed; `make bench` installs it")
    return ranks.commands_of_module("collectives.torch_worker", process)
