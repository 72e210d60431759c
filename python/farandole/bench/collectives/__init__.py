# SPDX-License-Identifier: Apache-2.0
"""The command `farandole bench collectives`: nccl-tests for every device and launcher."""
