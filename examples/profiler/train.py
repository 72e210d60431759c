# SPDX-License-Identifier: Apache-2.0
"""A training that is recorded, and what rules say of it; docs/profiler.md explains it.

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
        with farandole.profiler.annotate("Make a batch"):
            batch = torch.randn(64, 256)
        optimizer.zero_grad()
        model(batch).square().mean().backward()
        optimizer.step()


farandole.profiler.start(PATH, system_interval_ms=100)
train(steps=200)
farandole.profiler.stop()

few = torch.profiler.schedule(wait=2, warmup=1, active=2, repeat=1)
farandole.profiler.start(PATH, schedule=few, operators=True)
for _ in range(6):
    train(steps=1)
    farandole.profiler.step()
farandole.profiler.stop()
farandole.barrier()  # all ranks have written

if farandole.rank() == 0:
    profile = farandole.profiler.Profile(PATH)
    for report in farandole.profiler.ProfilerReport().reports(profile):
        print(f"{report.rule}: {report.what} {report.advice}")

    farandole.profiler.export_chrome_trace(PATH, PATH + "/all-ranks.json.gz")
    for each in farandole.profiler.top_operators(PATH, 3):
        print(f"{each.self_us:.0f} us in {each.calls} calls of {each.name}")

    for metric, series in profile.metrics.of("CPUUtilization").items():
        print(metric.node, metric.name, series.times[-1], series.values.mean())

    for rank in profile.timeline.ranks():
        for span in rank.spans("forward"):
            print(rank.rank, span.start_us, span.duration_us)

    # In another process, while the training runs:
    watch = farandole.profiler.RuleWatch(profile, [farandole.profiler.Straggler(threshold=20)])
    for report in watch.poll():
        print(report.to_json())
