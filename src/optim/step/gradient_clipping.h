// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "optim/shards/shard_layout.h"
#include "optim/shards/shard_ranks.h"
#include "optim/step/sharded_step.h"

namespace farandole {

// What ShardedOptimizer::clip_grad_norm() and clip_grad_value() do.

/// Collective.
at::Tensor clip_gradient_norm(ShardedStep& step, const ShardLayout& layout, GradientMode mode,
                              double max_norm, double norm_type, bool error_if_nonfinite);

/// Local.
void clip_gradient_values(ShardedStep& step, const ShardLayout& layout, GradientMode mode,
                          double clip_value);

}  // namespace farandole
