# SPDX-License-Identifier: Apache-2.0
"""smdebug's names over Farandole. What each does is in docs/smdebug.md."""

from farandole.debugger import ReductionConfig, SaveConfig, SaveConfigMode, modes
from farandole.sagemaker.collection_keys import CollectionKeys

__all__ = ["CollectionKeys", "ReductionConfig", "SaveConfig", "SaveConfigMode", "modes"]
