// SPDX-License-Identifier: Apache-2.0
#include "farandole/data/distributed_bucket_batch_sampler.h"

#include <numeric>
#include <string>
#include <utility>

#include "data/argument_check.h"
#include "farandole/data/epoch_order.h"

namespace farandole {

DistributedBucketBatchSampler::DistributedBucketBatchSampler(std::vector<int64_t> lengths,
                                                             size_t batch_size,
                                                             const BucketOptions& options)
    : EpochSampler(static_cast<int64_t>(lengths.size()),
                   share(lengths, static_cast<int64_t>(batch_size), options)) {}

EpochShare DistributedBucketBatchSampler::share(std::vector<int64_t> lengths, int64_t batch_size,
                                                const BucketOptions& options) {
  const auto check = [](int64_t number, const std::string& name) {
    check_sampler(number >= 1, "DistributedBucketBatchSampler", name + " " + std::to_string(number),
                  "it must be at least 1.");
  };
  check(batch_size, "batch_size");
  check(options.bucket_batches, "bucket_batches");
  const auto size = static_cast<int64_t>(lengths.size());
  const bool is_shuffled = options.shuffle;
  const int64_t bucket_batches = options.bucket_batches;
  const auto order = [size, is_shuffled, batch_size, bucket_batches,
                      own = std::move(lengths)](uint64_t seed) {
    std::vector<int64_t> indices(own.size());
    std::iota(indices.begin(), indices.end(), 0);
    if (is_shuffled) indices = shuffled_order(size, seed);
    return bucketed_order(std::move(indices), own, batch_size, bucket_batches);
  };
  return {size,
          order,
          options,
          {{"shuffle", is_shuffled ? 1 : 0},
           {"batch_size", batch_size},
           {"bucket_batches", bucket_batches}},
          batch_size};
}

void DistributedBucketBatchSampler::begin() { pass().batches = pass().share.begin_batches(); }

std::optional<std::vector<size_t>> DistributedBucketBatchSampler::next(size_t /*batch_size*/) {
  if (!pass().has_begun) reset();
  if (pass().next == pass().batches.size()) return std::nullopt;
  const std::vector<int64_t>& batch = pass().batches[pass().next++];
  return std::vector<size_t>(batch.begin(), batch.end());
}

}  // namespace farandole
