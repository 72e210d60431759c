# SPDX-License-Identifier: Apache-2.0
"""The accelerator that a program runs on: CUDA, or the simulated device of the tests.

`ACCELERATORS["sim"]` is there to run the same programs where no GPU is: what they compute is
checked, what they measure means nothing.
"""

import importlib
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from benchmarks.harness.results import REPOSITORY

DELAY_CYCLES = 50_000_000  # some 30 ms of a GPU


@dataclass(frozen=True)
class Accelerator:
    """A type of device. Threads: any."""

    type: str  # as torch names it

    @property
    def module(self) -> Any:
        """Torch's module for it: Stream(), Event(), current_stream(), synchronize(), ..."""
        return getattr(torch, self.type)

    def load(self) -> None:
        """Makes torch know it, in this process and for good."""

    def why_missing(self) -> str:
        """Empty if this machine has one. Needs no load()."""
        raise NotImplementedError

    def count(self) -> int:
        """How many this machine has. Needs no load()."""
        raise NotImplementedError

    def delay(self) -> None:
        """Gives the current stream something to do, so that what follows on it comes late."""

    def break_device(self) -> None:
        """Makes the current device fail, as an illegal access does: nothing runs there any more."""
        raise NotImplementedError

    def forget_races(self) -> None:
        """Of what an abort has ended, which nothing orders with what follows."""

    def new_graph(self) -> Any:
        """A graph for module.graph() to fill and replay() to run."""
        raise NotImplementedError

    def environment(self) -> dict[str, str]:
        """Variables that a rank needs."""
        return {}

    def settle(self) -> None:
        """Waits for the device; raises what has gone wrong there."""
        self.module.synchronize()

    def device(self, index: int) -> torch.device:
        """One of them."""
        return torch.device(self.type, index)


class Cuda(Accelerator):
    """NVIDIA's GPUs."""

    def why_missing(self) -> str:
        """See Accelerator."""
        if not torch.backends.cuda.is_built():  # type: ignore[no-untyped-call]
            return f"torch {torch.__version__} is built without CUDA"
        return "" if self.count() else "torch finds no GPU (does nvidia-smi?)"

    def count(self) -> int:
        """See Accelerator."""
        return torch.cuda.device_count()

    def delay(self) -> None:
        """See Accelerator."""
        torch.cuda._sleep(DELAY_CYCLES)  # type: ignore[no-untyped-call]

    def break_device(self) -> None:
        """See Accelerator."""
        torch.ones(1, device="cuda")[torch.tensor([1 << 20], device="cuda")]

    def new_graph(self) -> Any:
        """See Accelerator."""
        return torch.cuda.CUDAGraph()


class Simulated(Accelerator):
    """Of tests/support/simulated_device, whose schedules delay streams by themselves."""

    @property
    def _library(self) -> Path:
        build = os.environ.get("FARANDOLE_BUILD", "build/release")
        return REPOSITORY / build / "tests" / "libfarandole_simulated_nccl.so"

    def load(self) -> None:
        """See Accelerator."""
        tests = str(REPOSITORY / "tests" / "python")
        if tests not in sys.path:
            sys.path.append(tests)
        importlib.import_module("sim").load()
        importlib.import_module("farandole")  # the backend
        capability = torch.distributed.Backend.backend_capability["farandole"]
        if self.type not in capability:
            capability.append(self.type)

    def why_missing(self) -> str:
        """See Accelerator."""
        if self._library.exists():
            return ""
        return f"{self._library} is missing: build the C++ tests where nccl.h is (make build)"

    def count(self) -> int:
        """See Accelerator."""
        return 4

    def break_device(self) -> None:
        """See Accelerator."""
        self.module.fail("an illegal access", self.module.current_device())

    def forget_races(self) -> None:
        """See Accelerator."""
        self.module.take_reports()

    def new_graph(self) -> Any:
        """See Accelerator."""
        return self.module.Graph()

    def environment(self) -> dict[str, str]:
        """See Accelerator."""
        return {"FARANDOLE_NCCL_LIBRARY": str(self._library)}

    def settle(self) -> None:
        """See Accelerator. Raises RuntimeError for races."""
        super().settle()
        if reports := self.module.take_reports():
            raise RuntimeError("\n".join(reports))


ACCELERATORS: dict[str, Accelerator] = {"cuda": Cuda("cuda"), "sim": Simulated("sim")}
