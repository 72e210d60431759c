# SPDX-License-Identifier: Apache-2.0
"""Saving and loading a training, beside torch's ways and the disk."""
