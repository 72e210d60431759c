# SPDX-License-Identifier: Apache-2.0
"""Farandole below Lightning's Trainer. Needs `pip install lightning`; nothing else here does."""

from typing import Any

import farandole
from lightning.pytorch.strategies import DDPStrategy
from torch import nn


class FarandoleStrategy(DDPStrategy):
    """Lightning's DDPStrategy with Farandole's wrapper and backend.

    Trainer(accelerator="cpu", devices=2, strategy=FarandoleStrategy())
    """

    def __init__(self, **kwargs: Any) -> None:
        kwargs.setdefault("process_group_backend", "farandole")
        super().__init__(**kwargs)

    def _setup_model(self, model: nn.Module) -> nn.Module:
        ids = self.determine_ddp_device_ids()
        return farandole.DistributedDataParallel(model, ids, **self._ddp_kwargs)
