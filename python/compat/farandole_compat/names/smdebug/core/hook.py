# SPDX-License-Identifier: Apache-2.0
"""The base of hooks."""

from farandole.debugger import Hook as BaseHook

__all__ = ["BaseHook"]
