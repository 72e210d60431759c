# SPDX-License-Identifier: Apache-2.0
"""Trains with transformers: torchrun --nproc-per-node=2 examples/clients/with_trainer.py."""

import tempfile

import torch
from task import BATCH, STEPS, Rows, make_group, make_net, report
from transformers import Trainer, TrainingArguments

make_group()  # farandole.init_process_group(), before TrainingArguments would make another


class WithLoss(torch.nn.Module):
    """A module as Trainer takes it: it returns its loss."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()
        self.losses: list[float] = []

    def forward(self, x: torch.Tensor, labels: torch.Tensor) -> dict[str, torch.Tensor]:
        """The loss and the classes' logits."""
        logits = self.net(x)
        loss = torch.nn.functional.cross_entropy(logits, labels)
        self.losses.append(loss.item())
        return {"loss": loss, "logits": logits}


with tempfile.TemporaryDirectory() as folder:
    arguments = TrainingArguments(  # no ddp_backend: it takes the names of torch's own alone
        output_dir=folder,
        use_cpu=True,
        max_steps=STEPS,
        per_device_train_batch_size=BATCH,
        learning_rate=1e-2,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
    )
    model = WithLoss()
    trainer = Trainer(model=model, args=arguments, train_dataset=Rows())
    trainer.train()
report(model.losses)
torch.distributed.destroy_process_group()
