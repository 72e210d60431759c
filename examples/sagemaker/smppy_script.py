# SPDX-License-Identifier: Apache-2.0
"""A training that SageMaker Profiler records: a few steps, whose parts have names.

    farandole run -n 2 examples/sagemaker/smppy_script.py FOLDER

It imports nothing of Farandole: the package farandole-compat provides the names.
"""

import os
import sys

import smdistributed.dataparallel.torch.torch_smddp  # noqa: F401 (registers the backend)
import smppy
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel


def main():
    """Record steps 10 to 29."""
    dist.init_process_group(backend="smddp")
    model = DistributedDataParallel(nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 1)))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)

    config = smppy.Config()
    config.profiler = {"EnableCuda": "1"}
    if len(sys.argv) > 1:
        config.profiler["RecordFile"] = os.path.join(sys.argv[1], "%p_%t")
    profiler = smppy.SMProfiler.instance()
    profiler.configure(config)

    for step in range(40):
        if step == 10:
            profiler.start_profiling()
        with smppy.annotate("Forward"):
            loss = model(torch.ones(32, 64)).square().mean()
        backward = smppy.annotation_begin("Backward")
        loss.backward()
        smppy.annotation_end(backward)
        with smppy.annotate("Optimizer"):
            optimizer.step()
            optimizer.zero_grad()
        if step == 29:
            profiler.stop_profiling()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
