# SPDX-License-Identifier: Apache-2.0
"""Which steps are saved."""

from farandole.debugger import SaveConfig, SaveConfigMode

__all__ = ["SaveConfig", "SaveConfigMode"]
