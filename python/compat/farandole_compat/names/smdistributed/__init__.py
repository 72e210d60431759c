# SPDX-License-Identifier: Apache-2.0
"""SMDDP's names over Farandole. What each does is in docs/smddp.md."""
