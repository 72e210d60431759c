# SPDX-License-Identifier: Apache-2.0
"""Reads error messages from the sources, without a compiler and without importing Farandole."""
