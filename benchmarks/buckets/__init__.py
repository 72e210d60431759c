# SPDX-License-Identifier: Apache-2.0
"""Rounds of buckets with nothing to overlap with."""
