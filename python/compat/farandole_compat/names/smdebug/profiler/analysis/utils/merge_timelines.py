# SPDX-License-Identifier: Apache-2.0
"""Not offered; the error says what is."""

from farandole.sagemaker.absent import absent

raise absent(
    "smdebug.profiler.analysis.utils.merge_timelines",
    "all ranks are written into one file at once",
    "call farandole.profiler.export_chrome_trace(folder, path)",
)
