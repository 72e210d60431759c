# SPDX-License-Identifier: Apache-2.0
"""Training steps with DistributedDataParallel."""
