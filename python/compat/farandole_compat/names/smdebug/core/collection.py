# SPDX-License-Identifier: Apache-2.0
"""Collections."""

from farandole.debugger import Collection, CollectionKeys

__all__ = ["Collection", "CollectionKeys"]
