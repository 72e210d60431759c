# SPDX-License-Identifier: Apache-2.0
"""Trains a small transformer to continue a text, letter by letter, on one rank or several.

    python examples/python/train_char_lm.py README.md                      # 1 rank
    farandole run -n 2 examples/python/train_char_lm.py README.md 500      # 2 ranks, 500 steps
    python examples/python/train_char_lm.py README.md 500 checkpoints      # goes on from the last

examples/cpp/train_char_lm.cpp is the same program, and each goes on from checkpoints of the other,
on any number of ranks.

Every step has a batch of 16 sequences, however many ranks share them out. So the loss is the same
at any number of ranks up to 16, but for the rounding of sums in another order.
"""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import farandole
import torch
from progress import Progress
from torch import Tensor, nn
from torch.nn import functional

LETTERS, CONTEXT, WIDTH, HEADS, LAYERS = 256, 64, 64, 4, 2
BATCH = 16  # sequences of one step, over all ranks
STEPS_PER_CHECKPOINT = 100


class Block(nn.Module):
    """Attention to what came before, then a perceptron."""

    def __init__(self) -> None:
        super().__init__()
        self.attention_norm = nn.LayerNorm(WIDTH)
        self.query_key_value = nn.Linear(WIDTH, 3 * WIDTH)
        self.project = nn.Linear(WIDTH, WIDTH)
        self.perceptron_norm = nn.LayerNorm(WIDTH)
        self.widen = nn.Linear(WIDTH, 4 * WIDTH)
        self.narrow = nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        """(sequences, letters, width), and so is the result."""
        parts = self.query_key_value(self.attention_norm(x)).chunk(3, -1)
        query, key, value = (part.unflatten(-1, (HEADS, -1)).transpose(1, 2) for part in parts)
        mixed = functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        attended = x + self.project(mixed.transpose(1, 2).flatten(2))
        return attended + self.narrow(functional.gelu(self.widen(self.perceptron_norm(attended))))


class CharLm(nn.Module):
    """Letters to the scores of each next letter."""

    def __init__(self) -> None:
        super().__init__()
        self.letter, self.position = nn.Embedding(LETTERS, WIDTH), nn.Embedding(CONTEXT, WIDTH)
        head = nn.Linear(WIDTH, LETTERS)  # its weights are drawn before those of blocks, as in C++
        self.blocks = [Block() for _ in range(LAYERS)]
        for i, block in enumerate(self.blocks):
            self.add_module(f"block{i}", block)
        self.norm, self.head = nn.LayerNorm(WIDTH), head

    def forward(self, letters: Tensor) -> Tensor:
        """(sequences, letters) to (sequences, letters, LETTERS)."""
        x = self.letter(letters) + self.position(torch.arange(letters.shape[1]))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def load_data(path: Path) -> Tensor:
    """The bytes of a file as numbers. Replace this by your own."""
    return torch.frombuffer(bytearray(path.read_bytes()), dtype=torch.uint8).long()


def train(text: Tensor, steps: int, checkpoints: Path | None) -> None:
    """From the last checkpoint, if there is one, to step `steps`."""
    rank, world_size = farandole.rank(), farandole.world_size()
    torch.manual_seed(0)
    model = farandole.DistributedDataParallel(CharLm())
    # Each rank keeps the state of its shard of the parameters, and updates that for all.
    optimizer = farandole.ZeroRedundancyOptimizer(
        model.parameters(), torch.optim.AdamW, lr=3e-3, weight_decay=1e-2
    )
    found = None
    if checkpoints:
        found = farandole.resume_or_start(checkpoints, model=model, optimizer=optimizer)
    done = found["step"] if found else 0
    progress = Progress(done, steps)
    for step in range(done + 1, steps + 1):
        # All ranks draw the same numbers, so each knows the whole batch; a resumed training, too.
        generator = torch.Generator().manual_seed(step)
        starts = torch.randint(len(text) - CONTEXT, (BATCH, 1), generator=generator)
        letters = text[starts[rank::world_size] + torch.arange(CONTEXT + 1)]

        scores = model(letters[:, :-1])
        loss = functional.cross_entropy(scores.flatten(0, 1), letters[:, 1:].flatten())
        optimizer.zero_grad()
        model.set_loss_weight(len(letters))  # ranks may have a sequence more or less than others
        loss.backward()  # the gradients are those of the whole batch now
        optimizer.step()

        if step == 1 or step % 20 == 0 or step == steps:
            loss = loss.detach() * len(letters) / BATCH
            farandole.all_reduce(loss)  # a sum: the mean over the whole batch
            if rank == 0:
                last = ", the last" if step == steps else ""
                speed = progress.per_second(step, BATCH * CONTEXT)
                where = f"{speed:.0f} letters/s, {progress.left(step)} left{last}"
                print(f"step {step}: loss {loss.item():.6f}, {where}", flush=True)
        if checkpoints and (step % STEPS_PER_CHECKPOINT == 0 or step == steps):
            values = {"step": step}
            farandole.save_checkpoint(
                checkpoints, model=model, optimizer=optimizer, values=values, step=step, keep=2
            )


def main() -> None:
    """Reads the command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("text", type=Path, help="text file to learn from")
    parser.add_argument("steps", nargs="?", type=int, default=200)
    parser.add_argument("checkpoints", nargs="?", type=Path, help="folder of checkpoints")
    arguments = parser.parse_args()
    text = load_data(arguments.text)
    if len(text) <= CONTEXT:
        parser.error(
            f"{arguments.text} has {len(text)} letters, and more than {CONTEXT} are needed"
        )
    farandole.init_process_group()
    if farandole.world_size() > BATCH:
        sys.exit(f"at most {BATCH} ranks, one for each sequence")
    torch.set_num_threads(1)  # a core for each rank
    train(text, arguments.steps, arguments.checkpoints)
    farandole.destroy()


if __name__ == "__main__":
    main()
