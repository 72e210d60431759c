# SPDX-License-Identifier: Apache-2.0
"""A training whose hosts are watched, and what rules say of it; docs/profiler.md explains it.

torchrun --standalone --nproc-per-node=2 examples/profiler/train.py [PROFILE]
"""

import sys
import tempfile

import farandole
import torch

PATH = sys.argv[1] if len(sys.argv) > 1 else tempfile.mkdtemp()

farandole.init_process_group()
model = farandole.DistributedDataParallel(torch.nn.Linear(256, 256))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)


def train(steps: int) -> None:
    """Steps on random numbers."""
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(64, 256)).square().mean().backward()
        optimizer.step()


with farandole.profiler.SystemMonitor(PATH, interval_ms=100):
    train(steps=200)

if farandole.rank() == 0:
    profile = farandole.profiler.Profile(PATH)
    for report in farandole.profiler.ProfilerReport().reports(profile):
        print(f"{report.rule}: {report.what} {report.advice}")

    for metric, series in profile.metrics.of("CPUUtilization").items():
        print(metric.node, metric.name, series.times[-1], series.values.mean())

    for rank in profile.timeline.ranks():
        for span in rank.spans("forward"):
            print(rank.rank, span.start_us, span.duration_us)

    # In another process, while the training runs:
    watch = farandole.profiler.RuleWatch(profile, [farandole.profiler.Straggler(threshold=20)])
    for report in watch.poll():
        print(report.to_json())
