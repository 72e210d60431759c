# SPDX-License-Identifier: Apache-2.0
"""The one hook of a process."""

from farandole.sagemaker.debug_hook import del_hook, get_hook, set_hook

__all__ = ["del_hook", "get_hook", "set_hook"]
