# SPDX-License-Identifier: Apache-2.0
"""Models that are trained to measure a step: the layers of well-known ones, without weights."""
