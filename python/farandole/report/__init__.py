# SPDX-License-Identifier: Apache-2.0
"""The command `farandole report`: what a recorded run did, as one page and as plain values.

Nothing here is imported by ``import farandole``.
"""
