# SPDX-License-Identifier: Apache-2.0
"""Measurements of Farandole beside its peers."""
