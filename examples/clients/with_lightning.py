# SPDX-License-Identifier: Apache-2.0
"""Trains with Lightning: torchrun --nproc-per-node=2 examples/clients/with_lightning.py."""

import sys
from pathlib import Path

import lightning
import torch
from lightning.pytorch.strategies import DDPStrategy
from task import BATCH, Rows, make_net, report

sys.path.insert(0, str(Path(__file__).parents[1] / "ddp"))
from lightning_strategy import FarandoleStrategy


class Task(lightning.LightningModule):
    """A module as Lightning takes it."""

    def __init__(self) -> None:
        super().__init__()
        self.net = make_net()
        self.losses: list[float] = []

    def training_step(self, batch: dict[str, torch.Tensor], index: int) -> torch.Tensor:
        """The loss of this rank's batch."""
        del index
        loss = torch.nn.functional.cross_entropy(self.net(batch["x"]), batch["labels"])
        self.losses.append(loss.item())
        return loss

    def configure_optimizers(self) -> torch.optim.Optimizer:
        """Lightning calls it when the strategy is set up."""
        return torch.optim.AdamW(self.parameters(), lr=1e-2)

    def on_train_end(self) -> None:
        """Lightning ends the group after fit()."""
        report(self.losses)


if len(sys.argv) > 1:
    strategy = DDPStrategy(process_group_backend=sys.argv[1])
else:
    strategy = FarandoleStrategy()
trainer = lightning.Trainer(
    accelerator="cpu",
    devices=2,
    strategy=strategy,
    max_epochs=1,
    logger=False,
    enable_checkpointing=False,
    enable_progress_bar=False,
    enable_model_summary=False,
)
trainer.fit(Task(), torch.utils.data.DataLoader(Rows(), batch_size=BATCH))
