# SPDX-License-Identifier: Apache-2.0
"""The hook and its configuration."""

from farandole.debugger import (
    Collection,
    ReductionConfig,
    SaveConfig,
    SaveConfigMode,
    modes,
)
from farandole.sagemaker.collection_keys import CollectionKeys
from farandole.sagemaker.debug_hook import Hook, del_hook, get_hook, set_hook
from farandole.sagemaker.trial import create_trial

__all__ = [
    "Collection",
    "CollectionKeys",
    "Hook",
    "ReductionConfig",
    "SaveConfig",
    "SaveConfigMode",
    "create_trial",
    "del_hook",
    "get_hook",
    "modes",
    "set_hook",
]
