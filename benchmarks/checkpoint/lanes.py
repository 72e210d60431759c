# SPDX-License-Identifier: Apache-2.0
"""What is measured, by the names in the results. Needs no torch."""

LANES = {
    "farandole": "save_checkpoint() and load_checkpoint()",
    "dcp": "torch.distributed.checkpoint",
    "gathered": "consolidate_state_dict() and torch.save()",
    "raw": "the same bytes, written with fsync; read",
}
PARTS = {
    "save": "until it is on the disk",
    "load": "from the page cache",
    "stall": "how long an asynchronous save stops the training",
    "memory": "the most memory beyond what the training has, of one rank",
}
ASYNCHRONOUS = ("farandole", "dcp", "raw")  # raw: a copy of what the rank has
