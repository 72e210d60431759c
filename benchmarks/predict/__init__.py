# SPDX-License-Identifier: Apache-2.0
"""How well `farandole bench predict` predicts training steps on emulated hosts."""
