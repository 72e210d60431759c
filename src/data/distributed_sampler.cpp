// SPDX-License-Identifier: Apache-2.0
#include "farandole/data/distributed_sampler.h"

#include <numeric>
#include <string>

#include "data/argument_check.h"
#include "farandole/data/epoch_order.h"

namespace farandole {

DistributedSampler::DistributedSampler(size_t size, const DistributedSamplerOptions& options)
    : EpochSampler(static_cast<int64_t>(size), share(static_cast<int64_t>(size), options)) {}

EpochShare DistributedSampler::share(int64_t size, const DistributedSamplerOptions& options) {
  check_sampler(size >= 0, "DistributedSampler", "size " + std::to_string(size),
                "it is a number of samples.");
  const auto order = [size, is_shuffled = options.shuffle](uint64_t seed) {
    if (is_shuffled) return shuffled_order(size, seed);
    std::vector<int64_t> as_they_are(static_cast<size_t>(size));
    std::iota(as_they_are.begin(), as_they_are.end(), 0);
    return as_they_are;
  };
  return {size, order, options, {{"shuffle", options.shuffle ? 1 : 0}}};
}

}  // namespace farandole
