// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

#include "farandole/export.h"

namespace farandole {

// Orders in which an epoch goes through a dataset: indices of samples. Each is a function of its
// arguments alone, the same on all ranks. Any thread.

/// 0 to size - 1, shuffled: torch.randperm with a generator of this seed.
FARANDOLE_API std::vector<int64_t> shuffled_order(int64_t size, uint64_t seed);

/// Indices drawn with these weights: torch.multinomial with a generator of this seed, as in torch's
/// WeightedRandomSampler. `weights`: a float64 tensor of one dimension.
FARANDOLE_API std::vector<int64_t> weighted_order(const at::Tensor& weights, int64_t num_samples,
                                                  bool replacement, uint64_t seed);

/// Sorts `order` by length within buckets of bucket_batches batches: in descending order in the
/// first bucket, so that the longest samples of it come first, in ascending order in the next, and
/// so on, so that neighbouring batches have similar lengths everywhere. Batches are batch_size
/// indices each; the last one may have fewer.
FARANDOLE_API std::vector<int64_t> bucketed_order(std::vector<int64_t> order,
                                                  const std::vector<int64_t>& lengths,
                                                  int64_t batch_size, int64_t bucket_batches);

}  // namespace farandole
