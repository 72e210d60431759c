// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstddef>
#include <vector>

#include "optim/shards/shard_layout.h"
#include "optim/shards/shard_ranks.h"

namespace farandole {

// Whole arrays of the shards of all ranks. While the ranks change, of the old ranks' shards.
// Threads: one call at a time.

/// The memory that gather_bucket() needs with the same arguments, so that it fails before other
/// ranks wait. Local.
at::Tensor gather_space(const ShardRanks& ranks, const ShardPlan& plan, size_t bucket,
                        const at::Tensor& shard, int to);

/// Elements of one bucket, on rank `to`, or on all if it is -1; undefined on the others. Zeros for
/// a shard that no rank has. Collective.
at::Tensor gather_bucket(const ShardRanks& ranks, const ShardPlan& plan, size_t bucket,
                         const at::Tensor& shard, int to, at::Tensor space);

/// Tensors in the shapes of the parameters of a group, from the pieces of all ranks: see
/// ShardedOptimizer::gather(). For one rank they go to the CPU bucket by bucket. If a rank fails,
/// as without memory, all throw: it its own error, the others a StepError. Collective.
std::vector<at::Tensor> gather_group(const ShardRanks& ranks, const ShardLayout& layout,
                                     size_t group, const std::vector<at::Tensor>& pieces, int to);

}  // namespace farandole
