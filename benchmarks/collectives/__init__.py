# SPDX-License-Identifier: Apache-2.0
"""Collectives through Farandole, gloo and OpenMPI."""
