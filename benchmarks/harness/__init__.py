# SPDX-License-Identifier: Apache-2.0
"""What all benchmarks share: ranks, rounds, rows of results, tables."""
