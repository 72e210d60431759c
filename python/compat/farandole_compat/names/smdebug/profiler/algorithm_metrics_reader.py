# SPDX-License-Identifier: Apache-2.0
"""What ranks did."""

from farandole.sagemaker.readers import LocalAlgorithmMetricsReader
from farandole.sagemaker.readers import S3Reader as S3AlgorithmMetricsReader

__all__ = ["LocalAlgorithmMetricsReader", "S3AlgorithmMetricsReader"]
