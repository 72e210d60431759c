# SPDX-License-Identifier: Apache-2.0
"""The command `farandole run`: starts the ranks of a program by torchrun or mpirun."""
