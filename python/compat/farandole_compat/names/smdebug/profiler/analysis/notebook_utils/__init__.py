# SPDX-License-Identifier: Apache-2.0
"""Not offered; the error says what is."""

from farandole.sagemaker.absent import absent

raise absent(
    "smdebug.profiler.analysis.notebook_utils",
    "its charts are those of the report",
    "run farandole report FOLDER, which writes one page of HTML",
)
