# SPDX-License-Identifier: Apache-2.0
"""What a recorder costs a training."""
