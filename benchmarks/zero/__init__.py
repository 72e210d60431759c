# SPDX-License-Identifier: Apache-2.0
"""Training with sharded optimizers."""
