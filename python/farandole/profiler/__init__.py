# SPDX-License-Identifier: Apache-2.0
"""Where the time of a training goes."""

from farandole.profiler.annotations import annotate, annotation_begin, annotation_end
from farandole.profiler.operators import Operator, top_operators
from farandole.profiler.recording import is_recording, start, step, stop

__all__ = [
    "Operator",
    "annotate",
    "annotation_begin",
    "annotation_end",
    "is_recording",
    "start",
    "step",
    "stop",
    "top_operators",
]
