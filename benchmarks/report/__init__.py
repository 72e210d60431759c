# SPDX-License-Identifier: Apache-2.0
"""What it takes to read a recorded run."""
