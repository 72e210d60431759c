# SPDX-License-Identifier: Apache-2.0
"""Not offered; the error says what is."""

from farandole.sagemaker.absent import absent

raise absent(
    "smdebug.profiler.analysis.python_profile_analysis",
    "Farandole does not profile functions of Python",
    "use cProfile, py-spy, or farandole.profiler.start(folder, operators=True, schedule=...)",
)
