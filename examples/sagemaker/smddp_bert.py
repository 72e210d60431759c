# SPDX-License-Identifier: Apache-2.0
"""A pretraining as SMDDP's first version has it: masked tokens, accumulated gradients, clipping.

    farandole run -n 2 examples/sagemaker/smddp_bert.py --max-steps 20

It imports nothing of Farandole: the package farandole-compat provides the names. The batch size is
that of all ranks and accumulated passes together, so losses are the same on any number of ranks.
"""

import argparse
import os

import smdistributed.dataparallel.torch.distributed as dist
import torch
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP
from torch import nn
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

WORDS, LENGTH, MASK = 24, 12, 0


class Bert(nn.Module):
    """An encoder of two layers that says which words were masked."""

    def __init__(self, width=32):
        super().__init__()
        self.words = nn.Embedding(WORDS, width)
        self.positions = nn.Parameter(0.1 * torch.randn(LENGTH, width))
        layer = nn.TransformerEncoderLayer(width, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.decoder = nn.Linear(width, WORDS)

    def forward(self, tokens):
        """Scores of all words for each position."""
        return self.decoder(self.encoder(self.words(tokens) + self.positions))


def sentences(count):
    """Words that count up; every fourth is masked."""
    first = torch.arange(count).unsqueeze(1)
    words = (first + torch.arange(LENGTH)) % (WORDS - 1) + 1
    masked = words.clone()
    masked[:, 1::4] = MASK
    return TensorDataset(masked, words)


def main():
    """Train some steps, report the loss of all ranks, and save a checkpoint."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--train-batch-size", type=int, default=32)
    parser.add_argument("--gradient-accumulation-steps", type=int, default=2)
    parser.add_argument("--max-steps", type=int, default=20)
    parser.add_argument("--learning-rate", type=float, default=3e-3)
    parser.add_argument("--bf16", action="store_true")
    parser.add_argument("--output-dir", default=os.environ.get("SM_MODEL_DIR", ""))
    args = parser.parse_args()

    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    passes = args.gradient_accumulation_steps
    torch.manual_seed(12)
    model = DDP(Bert(), broadcast_buffers=False, bucket_cap_mb=25)
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.learning_rate)
    warmup = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(1.0, (step + 1) / 5))

    data = sentences(320)
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank, shuffle=False)
    size = args.train_batch_size // world_size // passes
    loader = DataLoader(data, batch_size=size, sampler=sampler, drop_last=True)
    step, losses = 0, torch.zeros(())
    while step < args.max_steps:
        for number, (tokens, words) in enumerate(loader, 1):
            is_last = number % passes == 0
            with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
                if is_last:
                    scores = model(tokens)
                else:
                    with model.no_sync():
                        scores = model(tokens)
            hidden = tokens == MASK
            loss = nn.functional.cross_entropy(scores[hidden].float(), words[hidden]) / passes
            loss.backward()
            losses += loss.detach()
            if not is_last:
                continue
            nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            warmup.step()
            optimizer.zero_grad()
            step += 1
            if step % 5 == 0:
                dist.all_reduce(losses, op=dist.ReduceOp.AVERAGE)
                if rank == 0:
                    print(f"step {step}: loss {losses.item() / 5:.3f}")
                losses.zero_()
            if step == args.max_steps:
                break
    if rank == 0 and args.output_dir:
        state = {"model": model.module.state_dict(), "optimizer": optimizer.state_dict()}
        torch.save(state, os.path.join(args.output_dir, f"ckpt_{step}.pt"))
    dist.barrier()


if __name__ == "__main__":
    main()
