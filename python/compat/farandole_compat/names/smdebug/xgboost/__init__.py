# SPDX-License-Identifier: Apache-2.0
"""Not offered; the error says what is."""

from farandole.sagemaker.absent import absent

raise absent(
    "smdebug.xgboost",
    "Farandole is for torch",
    "use smdebug.pytorch, or natively farandole.debugger.Hook",
)
