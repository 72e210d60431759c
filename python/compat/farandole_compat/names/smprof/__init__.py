# SPDX-License-Identifier: Apache-2.0
"""SageMaker Profiler by its name since the end of 2023; the same as smppy."""

from smppy import Config, SMProfiler, annotate, annotation_begin, annotation_end

__all__ = ["Config", "SMProfiler", "annotate", "annotation_begin", "annotation_end"]
