# SPDX-License-Identifier: Apache-2.0
"""What is measured, by the names in the results. Needs no torch."""

LANES = {
    "farandole": "save_checkpoint() and load_checkpoint()",
    "dcp": "torch.distributed.checkpoint",
    "gathered": "consolidate_state_dict() and torch.save()",
    "raw": "the same bytes: write() and fsync(); read() into new memory; a copy",
    "kept": "the same bytes: read() into memory that is there",
}
PARTS = {
    "save": "until it is on the disk",
    "load": "from the page cache",
    "stall": "how long an asynchronous save stops the training",
    "memory": "the most memory beyond what the training has, of one rank",
}
OF_PART = {
    "save": ("farandole", "dcp", "gathered", "raw"),
    "load": ("farandole", "dcp", "gathered", "raw", "kept"),
    "stall": ("farandole", "dcp", "raw"),
    "memory": ("farandole", "dcp", "gathered"),
}
