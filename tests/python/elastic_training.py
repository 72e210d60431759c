# SPDX-License-Identifier: Apache-2.0
"""A training for Horovod elastic whose steps can be retraced in one plain process.

    elastic_training.py FOLDER [--epochs N] [--kill RANK EPOCH BATCH PLACE] [--hosts JSON]

The gradients are sums of inputs, so everything is exact. The state has the history of all committed
steps: the samples of each rank. The process that began as RANK dies once at PLACE of a batch.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import time
from pathlib import Path

import farandole
import horovod.torch as hvd
import torch
from torch.utils.data import DataLoader

SAMPLES, FEATURES, BATCH, RATE = 24, 4, 2, 0.125
DATA = (torch.arange(SAMPLES * FEATURES).reshape(SAMPLES, FEATURES) % 17 - 8) / 16


def retraced(first: list[float], history: list[list[list[int]]]) -> list[float]:
    """The weights after these steps from these first ones, in one plain process."""
    weights = torch.nn.Parameter(torch.tensor(first))
    optimizer = torch.optim.SGD([weights], lr=RATE, momentum=1.0)
    for step in history:
        optimizer.zero_grad()
        (DATA[[index for batch in step for index in batch]] @ weights).sum().backward()
        optimizer.step()
    return weights.tolist()


def parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--kill", nargs=4, default=("-1", "0", "0", ""))
    parser.add_argument("--hosts", type=json.loads, default=[])
    parser.add_argument("--pause", type=float, default=0.0)
    return parser.parse_args()


def main() -> None:
    """What each rank runs."""
    options = parse()
    begun = int(os.environ["RANK"])
    victim, when, place = options.kill[0], options.kill[1:3], options.kill[3]

    def die_at(here: str, state: hvd.elastic.TorchState | None = None) -> None:
        at = ["0", "0"] if state is None else [str(state.epoch), str(state.batch)]
        if (str(begun), at, here) == (victim, list(when), place):
            mark = options.folder / "killed"
            if not mark.exists():
                mark.touch()
                os.kill(os.getpid(), signal.SIGKILL)

    die_at("start")
    hvd.init()
    die_at("init")
    model = torch.nn.Linear(FEATURES, 1, bias=False)
    torch.nn.init.constant_(model.weight, 1.0 + hvd.rank())
    optimizer = hvd.DistributedOptimizer(
        torch.optim.SGD(model.parameters(), lr=RATE, momentum=1.0),
        named_parameters=model.named_parameters(),
        op=hvd.Sum,
    )
    dataset = list(range(SAMPLES))
    sampler = hvd.elastic.ElasticSampler(dataset, seed=3)
    state = hvd.elastic.TorchState(
        model, optimizer, sampler=sampler, epoch=0, batch=0, history=[], sizes=[], first=[]
    )
    resets: list[int] = []
    state.register_reset_callbacks([lambda: resets.append(hvd.size())])

    @hvd.elastic.run
    def train(state: hvd.elastic.TorchState) -> list[float]:
        die_at("sync", state)
        state.sizes = [*state.sizes, hvd.size()]
        state.first = state.first or model.weight.flatten().tolist()
        if hvd.rank() == 0 and len(options.hosts) > len(state.sizes):
            (options.folder / "hosts").write_text(options.hosts[len(state.sizes)] + "\n")
        while state.epoch < options.epochs or state.batch or len(state.sizes) < len(options.hosts):
            for number, batch in enumerate(DataLoader(dataset, BATCH, sampler=sampler)):
                die_at("step", state)
                optimizer.zero_grad()
                model(DATA[batch]).sum().backward()
                die_at("backward", state)
                optimizer.step()
                sampler.record_batch(number, BATCH)
                taken = hvd.allgather_object(batch.tolist())
                state.history = [*state.history, [state.epoch, taken]]
                state.batch += 1
                time.sleep(options.pause)
                die_at("commit", state)
                state.commit()
            state.batch, state.epoch = 0, state.epoch + 1
            sampler.set_epoch(state.epoch)
        return model.weight.flatten().tolist()

    weights = train(state)
    result = {
        "weights": weights,
        "first": state.first,
        "history": state.history,
        "sizes": state.sizes,
        "resets": resets,
        "rank": hvd.rank(),
        "commits": farandole.elastic_meeting.standing.commits,
    }
    (options.folder / f"result-{begun}-{os.getpid()}").write_text(json.dumps(result))
    hvd.shutdown()


if __name__ == "__main__":
    main()
