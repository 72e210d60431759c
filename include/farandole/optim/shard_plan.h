// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "farandole/ddp/bucket_plan.h"
#include "farandole/export.h"

namespace farandole {

/// The properties of a parameter that a plan depends on.
struct ShardedParameter {
  PlannedParameter planned;
  size_t group = 0;  ///< of the optimizer's parameter groups
};

/// How parameters are divided among ranks.
enum class Partition {
  kElements,    ///< into shards of one size, which begin and end in the middle of parameters
  kParameters,  ///< whole parameters, balanced by size: for updates that need their shape
};

/// How make_shard_plan() divides.
struct ShardDivision {
  Partition partition = Partition::kElements;
  /// kParameters: elements that each rank owns already; none if empty.
  std::vector<int64_t> loads = {};
};

/// The part of one parameter in one rank's shard of one bucket. Offsets are in elements; offsets in
/// a parameter follow the order of its memory.
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
/// Parameters are in buckets of one dtype and one parameter group. Each bucket is divided into
/// world_size shards of whole cache lines; rank r owns shard r of every bucket.
///
/// With kElements buckets are padded so that all shards have the same number of elements; shards
/// begin and end in the middle of parameters. With kParameters a shard is a set of whole
/// parameters, possibly empty, and its last cache line is padded (`elements` of a bucket includes
/// this padding). From the largest to the smallest, each parameter goes to the rank with the fewest
/// elements so far, over all buckets (Graham 1969, "Bounds on multiprocessing timing anomalies":
/// longest processing time first); the largest load is at most 4/3 - 1/(3 world_size) of the
/// optimum.
struct FARANDOLE_API ShardPlan {
  BucketPlan buckets;
  std::vector<size_t> groups;  ///< the parameter group of each bucket
  int world_size = 1;
  Partition partition = Partition::kElements;
  /// For each bucket: the begin of each rank's shard and the end of the last one, in elements.
  std::vector<std::vector<int64_t>> bounds = {};

  /// Where the shard of `rank` begins in `bucket`.
  int64_t shard_begin(size_t bucket, int rank) const;
  /// Elements of that shard, padding included.
  int64_t shard_elements(size_t bucket, int rank) const;
  /// Of all ranks in rank order.
  std::vector<int64_t> shard_lengths(size_t bucket) const;
  /// The pieces that `rank` owns, by bucket and in the order of memory; without empty pieces.
  std::vector<ShardPiece> pieces_of(int rank) const;
};

/// Plans buckets of about `bucket_bytes` in reverse order of registration, which is about the order
/// in which backward reaches them.
///
/// Pure: no network, any thread. Throws InvalidArgument for parameters on several devices, and for
/// what make_bucket_plan() refuses.
FARANDOLE_API ShardPlan make_shard_plan(const std::vector<ShardedParameter>& parameters,
                                        int64_t bucket_bytes, int world_size,
                                        const ShardDivision& division = {});

}  // namespace farandole
