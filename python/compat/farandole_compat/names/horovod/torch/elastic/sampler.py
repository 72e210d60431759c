# SPDX-License-Identifier: Apache-2.0
"""farandole.elastic's sampler, by Horovod's name."""

from farandole.elastic import ElasticSampler

__all__ = ["ElasticSampler"]
