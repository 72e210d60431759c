# SPDX-License-Identifier: Apache-2.0
"""The command `farandole bench train`: throughput of training steps, and what they scale to."""
