# SPDX-License-Identifier: Apache-2.0
"""Not offered; the error says what is."""

from farandole.sagemaker.absent import absent

raise absent(
    "smdebug.rules.action",
    "actions are objects here",
    "use farandole.debugger.Log, Webhook and StopTraining, or action_str of a rule",
)
