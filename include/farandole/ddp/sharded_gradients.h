// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "farandole/ddp/bucket_plan.h"

namespace farandole {

/// What a Reducer does with gradients that a sharded optimizer averages: p.grad stays this rank's
/// own gradient, and passes add up in it as without a Reducer. Ranks still tell each other at the
/// end of backward how it went.
struct ShardedGradients {
  const void* owner = nullptr;  ///< the optimizer
  /// Gets each full bucket during backward and leaves it as it is; null: the optimizer reads the
  /// buckets of all ranks.
  std::shared_ptr<c10d::CommHookInterface> scatter = {};
  /// The buckets that `scatter` knows; nullopt: the Reducer plans them itself.
  std::optional<BucketPlan> plan = {};
  /// Called before a backward adds to gradients.
  std::function<void()> before_backward = {};
};

}  // namespace farandole
