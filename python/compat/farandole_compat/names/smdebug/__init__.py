# SPDX-License-Identifier: Apache-2.0
"""smdebug's names over Farandole. What each does is in docs/smdebug.md."""

from farandole.debugger import CollectionKeys, ReductionConfig, SaveConfig, SaveConfigMode, modes

__all__ = ["CollectionKeys", "ReductionConfig", "SaveConfig", "SaveConfigMode", "modes"]
