# SPDX-License-Identifier: Apache-2.0
"""What a debugger's hook costs a training."""
