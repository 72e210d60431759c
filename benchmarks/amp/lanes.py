# SPDX-License-Identifier: Apache-2.0
"""What is measured, by the names in the results. Needs no torch."""

LANES = [  # of steps: each without a scaler, and right after that with one
    "ours_full",
    "ours_full+scaler",
    "ours_shard",
    "ours_shard+scaler",
    "torch_ddp",
    "torch_ddp+torch_scaler",
    "ours_ddp",
    "ours_ddp+scaler",
    "ours_ddp+torch_scaler",
]
UNSCALING = {  # labels of the ways to divide and check gradients
    "farandole": "Farandole's GradScaler",
    "torch_kernel": "torch's kernel",
    "torch_scaler": "torch's GradScaler",
    "memcpy": "a copy",
}
DTYPES = {"float32": 4, "bfloat16": 2}  # bytes
WIRE = {  # labels of the ways to send gradients over gloo; "x_y" is compared with "x"
    "ours": "Farandole's DDP, float32",
    "ours_hook": "Farandole's DDP, torch's bf16 hook",
    "ours_wire": "Farandole's DDP, wire_dtype bf16",
    "torch": "torch's DDP, float32",
    "torch_hook": "torch's DDP, torch's bf16 hook",
    "shard": "Farandole's DDP and ZeRO, shard, float32",
    "shard_wire": "Farandole's DDP and ZeRO, shard, wire_dtype bf16",
}
