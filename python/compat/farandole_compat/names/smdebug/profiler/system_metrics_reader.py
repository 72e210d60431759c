# SPDX-License-Identifier: Apache-2.0
"""What hosts did."""

from farandole.sagemaker.readers import LocalSystemMetricsReader
from farandole.sagemaker.readers import S3Reader as S3SystemMetricsReader

__all__ = ["LocalSystemMetricsReader", "S3SystemMetricsReader"]
