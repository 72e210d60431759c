# SPDX-License-Identifier: Apache-2.0
"""A distillation as SMDDP's first version has it: a Vision Transformer learns from a larger one.

    farandole run -n 2 examples/sagemaker/smddp_distillation.py --epochs 3

It imports nothing of Farandole: the package farandole-compat provides the names. The batch size is
that of all ranks together, so the losses are the same on any number of ranks.
"""

import argparse

import smdistributed.dataparallel.torch.distributed as dist
import torch
from smdistributed.dataparallel.torch.parallel.distributed import DistributedDataParallel as DDP
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, TensorDataset
from torch.utils.data.distributed import DistributedSampler

SIDE, PATCH, CLASSES = 16, 4, 8


class ViT(nn.Module):
    """Patches, some layers of attention, and a class token."""

    def __init__(self, width, layers):
        super().__init__()
        self.patches = nn.Conv2d(1, width, PATCH, PATCH)
        self.token = nn.Parameter(torch.zeros(1, 1, width))
        self.positions = nn.Parameter(0.02 * torch.randn((SIDE // PATCH) ** 2 + 1, width))
        layer = nn.TransformerEncoderLayer(
            width, 4, 2 * width, dropout=0.0, activation="gelu", batch_first=True, norm_first=True
        )
        self.encoder = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.head = nn.Linear(width, CLASSES)

    def forward(self, images):
        """Scores of the classes."""
        patches = self.patches(images).flatten(2).transpose(1, 2)
        token = self.token.expand(len(images), -1, -1)
        return self.head(self.encoder(torch.cat([token, patches], dim=1) + self.positions)[:, 0])


def squares(count):
    """Noise, with a bright patch whose place says the class."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(count) % CLASSES
    images = 0.3 * torch.randn(count, 1, SIDE, SIDE, generator=generator)
    for image, label in zip(images, labels.tolist(), strict=True):
        image[0, 2 * label : 2 * label + 2] += 1.0
    return TensorDataset(images, labels)


def distillation_loss(scores, teacher_scores, labels, temperature, alpha):
    """Cross-entropy, and how far the student's softened scores are from the teacher's."""
    soft = functional.kl_div(
        functional.log_softmax(scores / temperature, dim=1),
        functional.softmax(teacher_scores / temperature, dim=1),
        reduction="batchmean",
    )
    hard = functional.cross_entropy(scores, labels)
    return alpha * temperature**2 * soft + (1 - alpha) * hard


def train(args, model, loader, sampler, teacher=None):
    """Every epoch's mean loss of all ranks."""
    optimizer = torch.optim.AdamW(model.parameters(), lr=args.lr)
    losses = []
    for epoch in range(args.epochs):
        sampler.set_epoch(epoch)
        total = torch.zeros(())
        for images, labels in loader:
            with torch.autocast("cpu", torch.bfloat16, enabled=args.bf16):
                scores = model(images).float()
                with torch.no_grad():
                    told = teacher(images).float() if teacher else None
            if teacher is None:
                loss = functional.cross_entropy(scores, labels)
            else:
                loss = distillation_loss(scores, told, labels, args.temperature, args.alpha)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            total += loss.detach() / len(loader)
        dist.all_reduce(total, op=dist.ReduceOp.AVERAGE)
        losses.append(f"{total.item():.3f}")
    return losses


def main():
    """Train a teacher, then a student with it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--lr", type=float, default=3e-3)
    parser.add_argument("--temperature", type=float, default=4.0)
    parser.add_argument("--alpha", type=float, default=0.7)
    parser.add_argument("--bf16", action="store_true")
    args = parser.parse_args()

    dist.init_process_group()
    rank, world_size = dist.get_rank(), dist.get_world_size()
    torch.manual_seed(2)
    data = squares(256)
    sampler = DistributedSampler(data, num_replicas=world_size, rank=rank, shuffle=False)
    loader = DataLoader(data, batch_size=args.batch_size // world_size, sampler=sampler)

    teacher = ViT(width=32, layers=2)
    losses = train(args, DDP(teacher, broadcast_buffers=False), loader, sampler)
    if rank == 0:
        print("teacher", *losses)
    teacher.eval().requires_grad_(False)
    student = DDP(ViT(width=16, layers=1), broadcast_buffers=False)
    losses = train(args, student, loader, sampler, teacher)
    if rank == 0:
        print("student", *losses)
    dist.barrier()


if __name__ == "__main__":
    main()
