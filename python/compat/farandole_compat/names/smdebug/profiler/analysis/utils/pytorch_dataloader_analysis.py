# SPDX-License-Identifier: Apache-2.0
"""Not offered; the error says what is."""

from farandole.sagemaker.absent import absent

raise absent(
    "smdebug.profiler.analysis.utils.pytorch_dataloader_analysis",
    "a rule judges waits for batches",
    "call farandole.profiler.Dataloader().evaluate(farandole.profiler.Profile(folder))",
)
