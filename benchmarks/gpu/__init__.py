# SPDX-License-Identifier: Apache-2.0
"""Collectives and training steps on GPUs, beside torch's NCCL group."""
