// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "farandole/data/epoch_sampler.h"
#include "farandole/export.h"

namespace farandole {

/// Divides samples that are drawn with weights among the ranks: all together they have those of
/// torch's WeightedRandomSampler with a generator of seed + epoch.
class FARANDOLE_API DistributedWeightedRandomSampler final : public EpochSampler {
 public:
  /// `weights`: of each sample, at most 2^24; they need not add up to 1. `num_samples`: of all
  /// ranks in an epoch.
  /// Throws InvalidArgument if num_samples < 1, a weight is negative or not finite, all are 0 or,
  /// without replacement, fewer than num_samples are not.
  DistributedWeightedRandomSampler(const std::vector<double>& weights, int64_t num_samples,
                                   bool replacement = true, const SamplerOptions& options = {});

  /// For bindings to other languages. `weights`: a tensor of one dimension.
  static EpochShare share(const at::Tensor& weights, int64_t num_samples, bool replacement,
                          const SamplerOptions& options);
};

}  // namespace farandole
