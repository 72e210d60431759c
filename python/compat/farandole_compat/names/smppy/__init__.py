# SPDX-License-Identifier: Apache-2.0
"""SageMaker Profiler's names over Farandole. What each does is in docs/smdebug.md."""

from farandole.profiler import annotate, annotation_begin, annotation_end
from farandole.sagemaker.profiler import Config, SMProfiler

__all__ = ["Config", "SMProfiler", "annotate", "annotation_begin", "annotation_end"]
