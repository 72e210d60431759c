# SPDX-License-Identifier: Apache-2.0
"""The command `farandole migrate check`: what a script uses of other libraries, and what it gets.

Scripts are read, and never run. Nothing here is imported by ``import farandole``.
"""
