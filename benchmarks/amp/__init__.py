# SPDX-License-Identifier: Apache-2.0
"""The cost of a GradScaler, and gradients in bfloat16."""
