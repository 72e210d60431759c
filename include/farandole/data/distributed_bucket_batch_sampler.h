// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "farandole/data/distributed_sampler.h"
#include "farandole/data/epoch_sampler.h"
#include "farandole/export.h"

namespace farandole {

struct BucketOptions : DistributedSamplerOptions {
  int64_t bucket_batches = 50;  ///< batches that are sorted together
};

/// Batches of samples with similar lengths, so that little padding is computed: shuffled samples
/// are sorted by length within buckets of bucket_batches batches, and ranks take batches in turn,
/// so that those of one step have similar lengths too. More batches in a bucket mean less padding
/// and less random batches. Bucketing by length: Khomenko et al. 2016, Accelerating recurrent
/// neural network training using sequence bucketing and multi-GPU data parallelization,
/// arXiv:1708.05604. See bucketed_order().
///
/// next() returns one of these batches, whatever batch_size the loader has. Positions, sizes and
/// `consumed` of state() count batches; with drop_last an incomplete batch is left out too.
class FARANDOLE_API DistributedBucketBatchSampler final : public EpochSampler {
 public:
  /// `lengths`: of each sample. Throws InvalidArgument if batch_size or bucket_batches is not
  /// positive.
  DistributedBucketBatchSampler(std::vector<int64_t> lengths, size_t batch_size,
                                const BucketOptions& options = {});

  std::optional<std::vector<size_t>> next(size_t batch_size) override;

  /// For bindings to other languages.
  static EpochShare share(std::vector<int64_t> lengths, int64_t batch_size,
                          const BucketOptions& options);

 protected:
  void begin() override;
};

}  // namespace farandole
