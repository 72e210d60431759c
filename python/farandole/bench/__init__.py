# SPDX-License-Identifier: Apache-2.0
"""The command `farandole bench`: how fast collectives and training steps are, here and elsewhere.

Nothing here is imported by ``import farandole``.
"""
