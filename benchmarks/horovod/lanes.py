# SPDX-License-Identifier: Apache-2.0
"""What is measured, by the names in the results. Needs no torch."""

RANKS = 2
ALL_REDUCES = {
    "farandole": "farandole.all_reduce",
    "horovod": "hvd.allreduce_",
    "horovod_copy": "hvd.allreduce",
    "gloo": "torch over gloo",
}
STEPS = {
    "alone": "one process",
    "farandole": "Farandole's DDP",
    "horovod": "hvd.DistributedOptimizer",
    "torch_gloo": "torch's DDP over gloo",
}
BASELINE = "farandole"  # of all ratios
TASKS = {
    "mlp": "MLP of 200 tensors",
    "resnet18": "ResNet-18, 16 images of 64 x 64",
    "transformer": "Transformer, 4.2 M parameters, 512 tokens",
}
