# SPDX-License-Identifier: Apache-2.0
"""Version 2: the import alone registers the backend "smddp" with torch.distributed."""

from farandole.sagemaker.data_parallel import register_backend

register_backend()
