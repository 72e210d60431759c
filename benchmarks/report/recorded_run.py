# SPDX-License-Identifier: Apache-2.0
"""A folder as a run of 8 ranks on one host leaves it: 10 steps a second, 64 cores, 8 GPUs."""

import json
import time
from collections.abc import Iterator
from pathlib import Path
from random import Random

RANKS, CORES, GPUS = 8, 64, 8
STEPS_S, SAMPLES_S = 10, 2
START_S = 1_800_000_000
FILE_S = 60
DDP_BUCKETS = 2


def write(folder: Path, seconds: int) -> int:
    """Of a run that took so long; returns the bytes of its files."""
    random = Random(0)
    for begin_s in range(0, seconds, FILE_S):
        for rank in range(RANKS):
            lines = [*_head(rank), *_spans(random, rank, begin_s)]
            name = f"{(START_S + begin_s + FILE_S) * 1_000_000}_{rank}-algo-1_pythontimeline.json"
            text = "[\n" + ",\n".join(lines) + "\n]\n"
            _file(folder / "framework" / "pevents", begin_s, name).write_text(text)
        name = f"{START_S + begin_s}.algo-1.json"
        text = "".join(_samples(random, begin_s))
        _file(folder / "system" / "incremental", begin_s, name).write_text(text)
    return sum(path.stat().st_size for path in folder.rglob("*.json"))


def _file(folder: Path, begin_s: int, name: str) -> Path:
    to = folder / time.strftime("%Y%m%d%H", time.gmtime(START_S + begin_s))
    to.mkdir(parents=True, exist_ok=True)
    return to / name


def _head(rank: int) -> Iterator[str]:
    """What src/profile/trace_lines.cpp writes first."""
    start = {"name": f"rank {rank}", "start_time_since_epoch_in_micros": START_S * 1_000_000}
    place = {"rank": rank, "world_size": RANKS, "local_rank": rank, "node": "algo-1", "host": "a"}
    clock = {"clock_offset_us": float(rank), "clock_error_us": 11.1}
    for name, args in (("process_name", start), ("farandole", place | clock)):
        event = {"name": name, "ph": "M", "pid": rank, "args": args}
        yield json.dumps(event, separators=(",", ":"))


def _spans(random: Random, rank: int, begin_s: int) -> Iterator[str]:
    """A file of them, in microseconds of 100 ms steps."""
    for number in range(begin_s * STEPS_S, (begin_s + FILE_S) * STEPS_S):
        at_us = number * 1e6 / STEPS_S
        late = random.randrange(RANKS)
        parts = [
            ("data", "dataloader", 0, 1e3, '"num_workers":2'),
            ("forward", "forward", 1e3, 25e3, ""),
            *(
                ("bucket", f"bucket {i}", 36e3 + 9e3 * i, 4e3,
                 f'"bytes":{26_214_400 - i},"complete_us":{random.uniform(0, 900):.3f}')
                for i in range(DDP_BUCKETS)
            ),
            ("backward", "backward", 28e3, 50e3, f'"backward":{number},"copied_bytes":0'),
            ("communication", "exposed_communication", 81e3, 3e3, f'"latest_rank":{late}'),
            ("collective", "bucket_reduction", 81e3, 3e3,
             f'"group":"default","sequence":{number},"bytes":52428800,'
             f'"waiting_us":{random.uniform(0, 900):.3f},"latest_rank":{late}'),
            ("optimizer", "optimizer_step", 86e3, 9e3, '"optimizer":"AdamW"'),
            ("step", "step", 1e3, 96e3, f'"step":{number},"mode":"TRAIN"'),
        ]  # fmt: skip
        for category, name, after_us, us, args in parts:
            duration_us = us * random.uniform(0.9, 1.1)
            yield (
                f'{{"name":"{name}","cat":"{category}","ph":"X","ts":{at_us + after_us:.3f},'
                f'"dur":{duration_us:.3f},"pid":{rank},"tid":1,"args":{{{args}}}}}'
            )


def _samples(random: Random, begin_s: int) -> Iterator[str]:
    """A file of them, as profiler/metrics_file.py writes it."""
    for number in range(FILE_S * SAMPLES_S):
        tail = f'"NodeId": "algo-1", "Timestamp": {START_S + begin_s + number / SAMPLES_S:.6f}'
        for kind, name, dimension in _METRICS:
            yield (
                f'{{"Type": "{kind}", "Name": "{name}", "Dimension": "{dimension}", '
                f'"Value": {random.uniform(0, 100):.6g}, {tail}}}\n'
            )


_METRICS = [
    *(("cpu", f"cpu{i}", name) for i in range(CORES)
      for name in ("CPUUtilization", "I/OWaitPercentage")),
    *(("gpu", f"gpu{i}", name) for i in range(GPUS)
      for name in ("GPUUtilization", "GPUMemoryUtilization", "GPUPowerWatts")),
    ("memory", "MemoryUsedPercent", ""),
    *(("network", name, "Algorithm") for name in
      ("ReceiveBytesPerSecond", "TransmitBytesPerSecond")),
    *(("i/o", name, "") for name in
      ("IOPS", "ReadThroughputInBytesPerSecond", "WriteThroughputInBytesPerSecond")),
    ("host", "cores", "RunnableThreadsPerCore"),
]  # fmt: skip
