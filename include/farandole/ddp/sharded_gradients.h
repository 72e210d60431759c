// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/comm.hpp>

#include "farandole/ddp/bucket_plan.h"

namespace farandole {

/// Makes a Reducer leave averaging to a sharded optimizer: p.grad stays this rank's own gradient,
/// and passes accumulate in it as without a Reducer. Ranks still exchange reports at the end of
/// backward.
struct ShardedGradients {
  const void* owner = nullptr;  ///< the optimizer
  /// Gets each full bucket during backward and leaves it unchanged; null: the optimizer reads the
  /// buckets of all ranks.
  std::shared_ptr<c10d::CommHookInterface> scatter = {};
  /// The buckets that `scatter` expects; nullopt: the Reducer plans them itself.
  std::optional<BucketPlan> plan = {};
  /// Called before a backward adds to gradients.
  std::function<void()> before_backward = {};
};

}  // namespace farandole
