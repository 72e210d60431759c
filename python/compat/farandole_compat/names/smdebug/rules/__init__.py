# SPDX-License-Identifier: Apache-2.0
"""Rules: the base of one's own, and the built-in ones."""

from farandole.sagemaker.required_tensors import RequiredTensors
from farandole.sagemaker.rule import Rule, invoke_rule

from smdebug.rules import generic
from smdebug.rules.generic import *  # noqa: F403

__all__ = ["RequiredTensors", "Rule", "invoke_rule"]
__all__ += generic.__all__
