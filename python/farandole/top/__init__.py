# SPDX-License-Identifier: Apache-2.0
"""The command `farandole top`: what a running job does, in the terminal.

Nothing here is imported by ``import farandole``.
"""
