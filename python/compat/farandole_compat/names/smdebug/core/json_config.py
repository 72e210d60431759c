# SPDX-License-Identifier: Apache-2.0
"""Hooks of JSON files."""

from farandole.sagemaker.debug_hook import create_hook_from_json_config
from farandole.sagemaker.places import DEBUGGER_CONFIG as CONFIG_FILE_PATH_ENV_STR

__all__ = ["CONFIG_FILE_PATH_ENV_STR", "create_hook_from_json_config"]
