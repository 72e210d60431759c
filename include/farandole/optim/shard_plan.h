// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "farandole/ddp/bucket_plan.h"
#include "farandole/export.h"

namespace farandole {

/// What the plan needs to know of a parameter.
struct ShardedParameter {
  PlannedParameter planned;
  size_t group = 0;  ///< of the optimizer's parameter groups
};

/// The part of one parameter that lies in one rank's shard of one bucket. Offsets count elements;
/// those of a parameter in the order of its memory.
struct ShardPiece {
  size_t parameter;
  size_t bucket;
  int64_t parameter_offset;
  int64_t bucket_offset;
  int64_t shard_offset;
  int64_t elements;
};

/// Which rank owns which elements of the parameters, and of their optimizer state (ZeRO stage 1:
/// Rajbhandari et al. 2020, arXiv 1910.02054).
///
/// Parameters lie in buckets of one dtype and one parameter group. Each bucket is padded so that it
/// divides into world_size shards, equal to the element and of whole cache lines; rank r owns shard
/// r of every bucket. So shards begin and end in the middle of parameters, and no rank has more
/// than another.
struct FARANDOLE_API ShardPlan {
  BucketPlan buckets;
  std::vector<size_t> groups;  ///< the parameter group of each bucket
  int world_size = 1;

  /// Elements of each rank's shard of `bucket`, padding included.
  int64_t shard_elements(size_t bucket) const;
  /// What `rank` owns, by bucket and in the order of memory; without empty pieces.
  std::vector<ShardPiece> pieces_of(int rank) const;
};

/// Plans buckets of about `bucket_bytes` in reverse order of registration, which is about the order
/// in which backward reaches them.
///
/// Pure: no network, any thread. Throws InvalidArgument for parameters on several devices, and for
/// what make_bucket_plan() refuses.
FARANDOLE_API ShardPlan make_shard_plan(const std::vector<ShardedParameter>& parameters,
                                        int64_t bucket_bytes, int world_size);

}  // namespace farandole
