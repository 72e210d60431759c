# SPDX-License-Identifier: Apache-2.0
"""Reading profiles."""

from farandole.sagemaker.readers import (
    LocalAlgorithmMetricsReader,
    LocalSystemMetricsReader,
    TraceEvent,
)
from farandole.sagemaker.readers import S3Reader as S3AlgorithmMetricsReader
from farandole.sagemaker.readers import S3Reader as S3SystemMetricsReader

__all__ = [
    "LocalAlgorithmMetricsReader",
    "LocalSystemMetricsReader",
    "S3AlgorithmMetricsReader",
    "S3SystemMetricsReader",
    "TraceEvent",
]
