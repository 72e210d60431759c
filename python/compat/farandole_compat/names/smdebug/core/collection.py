# SPDX-License-Identifier: Apache-2.0
"""Collections."""

from farandole.debugger import Collection
from farandole.sagemaker.collection_keys import CollectionKeys

__all__ = ["Collection", "CollectionKeys"]
