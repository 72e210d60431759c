// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>

#include "farandole/data/epoch_sampler.h"
#include "farandole/export.h"

namespace farandole {

struct DistributedSamplerOptions : SamplerOptions {
  bool shuffle = true;  ///< in another way in each epoch; else in the order of the dataset
};

/// Divides a dataset among the ranks as torch.utils.data.DistributedSampler of Python does, sample
/// by sample, and can go on in the middle of an epoch.
class FARANDOLE_API DistributedSampler final : public EpochSampler {
 public:
  /// `size`: of the dataset. Throws InvalidArgument if options do not go together, or if they name
  /// no ranks and there is no default group.
  explicit DistributedSampler(size_t size, const DistributedSamplerOptions& options = {});

  /// For bindings to other languages.
  static EpochShare share(int64_t size, const DistributedSamplerOptions& options);
};

}  // namespace farandole
