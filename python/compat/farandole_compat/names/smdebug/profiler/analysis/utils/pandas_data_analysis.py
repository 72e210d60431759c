# SPDX-License-Identifier: Apache-2.0
"""Not offered; the error says what is."""

from farandole.sagemaker.absent import absent

raise absent(
    "smdebug.profiler.analysis.utils.pandas_data_analysis",
    "statistics of steps and hardware are those of rules and of the report",
    "run farandole report FOLDER, or use farandole.profiler.Profile(folder).steps()",
)
