// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/shard_plan.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

#include "farandole/error.h"

namespace farandole {
namespace {

constexpr int64_t kAlignment = 128;  // of buckets: CPUs fetch two cache lines together
constexpr int64_t kLineBytes = 64;   // shards begin at cache lines

void check_one_device(const std::vector<ShardedParameter>& parameters) {
  for (const ShardedParameter& parameter : parameters) {
    if (parameter.planned.device == parameters.front().planned.device) continue;
    throw InvalidArgument("several-devices",
                          "a sharded optimizer got parameters on " +
                              parameters.front().planned.device.str() + " and on " +
                              parameter.planned.device.str() + ".",
                          "the shards of a rank are parts of one buffer on one device.",
                          "make one optimizer for the parameters of each device.");
  }
}

/// A bucket before all buckets are sorted.
struct Planned {
  BucketPlan::Bucket bucket;
  size_t group;
  size_t last;  ///< the parameter that comes last
};

/// The buckets of one group.
std::vector<Planned> plan_group(const std::vector<PlannedParameter>& parameters,
                                const std::vector<size_t>& order, size_t group,
                                int64_t bucket_bytes, int world_size) {
  std::vector<Planned> planned;
  for (auto& bucket :
       make_bucket_plan(parameters, order, {bucket_bytes, bucket_bytes}, world_size).buckets) {
    const size_t last = bucket.slots.back().parameter;
    planned.push_back({std::move(bucket), group, last});
  }
  return planned;
}

/// The rank that gets each parameter: see ShardPlan.
std::vector<int> owners_of(const std::vector<ShardedParameter>& parameters, int world_size,
                           std::vector<int64_t> loads) {
  loads.resize(static_cast<size_t>(world_size));
  std::vector<size_t> order(parameters.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) {
    return parameters[a].planned.elements > parameters[b].planned.elements;
  });
  std::vector<int> owners(parameters.size());
  for (const size_t parameter : order) {
    const auto least = std::min_element(loads.begin(), loads.end());
    *least += parameters[parameter].planned.elements;
    owners[parameter] = static_cast<int>(least - loads.begin());
  }
  return owners;
}

/// The bounds of the shards of a bucket that is cut into equal ones.
std::vector<int64_t> equal_bounds(const BucketPlan::Bucket& bucket, int world_size) {
  std::vector<int64_t> bounds;
  for (int rank = 0; rank <= world_size; ++rank) {
    bounds.push_back(bucket.padded_elements / world_size * rank);
  }
  return bounds;
}

/// Places the parameters of each rank one after the other, those that fill whole cache lines first.
/// Returns the bounds of the shards.
std::vector<int64_t> place_by_owner(BucketPlan::Bucket& bucket, const std::vector<int>& owners,
                                    int world_size) {
  const int64_t line = kLineBytes / static_cast<int64_t>(c10::elementSize(bucket.dtype));
  std::vector<int64_t> bounds{0};
  int64_t offset = 0;
  for (int rank = 0; rank < world_size; ++rank) {
    for (const bool whole_lines : {true, false}) {
      for (BucketPlan::Slot& slot : bucket.slots) {
        const bool is_next =
            owners[slot.parameter] == rank && (slot.elements % line == 0) == whole_lines;
        if (is_next) slot.offset = std::exchange(offset, offset + slot.elements);
      }
    }
    offset = (offset + line - 1) / line * line;
    bounds.push_back(offset);
  }
  bucket.elements = offset;
  bucket.padded_elements = offset;
  return bounds;
}

}  // namespace

int64_t ShardPlan::shard_begin(size_t bucket, int rank) const {
  return bounds[bucket][static_cast<size_t>(rank)];
}

int64_t ShardPlan::shard_elements(size_t bucket, int rank) const {
  return shard_begin(bucket, rank + 1) - shard_begin(bucket, rank);
}

std::vector<int64_t> ShardPlan::shard_lengths(size_t bucket) const {
  std::vector<int64_t> lengths;
  for (int rank = 0; rank < world_size; ++rank) lengths.push_back(shard_elements(bucket, rank));
  return lengths;
}

std::vector<ShardPiece> ShardPlan::pieces_of(int rank) const {
  std::vector<ShardPiece> pieces;
  for (size_t bucket = 0; bucket < buckets.buckets.size(); ++bucket) {
    const int64_t begin = shard_begin(bucket, rank);
    const int64_t end = shard_begin(bucket, rank + 1);
    const size_t first = pieces.size();
    for (const auto& slot : buckets.buckets[bucket].slots) {
      const int64_t from = std::max(begin, slot.offset);
      const int64_t to = std::min(end, slot.offset + slot.elements);
      if (from >= to) continue;
      pieces.push_back({slot.parameter, bucket, from - slot.offset, from, from - begin, to - from});
    }
    std::sort(pieces.begin() + static_cast<std::ptrdiff_t>(first), pieces.end(),
              [](const auto& a, const auto& b) { return a.bucket_offset < b.bucket_offset; });
  }
  return pieces;
}

ShardPlan make_shard_plan(const std::vector<ShardedParameter>& parameters, int64_t bucket_bytes,
                          int world_size, const ShardDivision& division) {
  check_one_device(parameters);
  std::vector<PlannedParameter> planned;
  std::map<size_t, std::vector<size_t>> orders;  // of each group
  for (const ShardedParameter& parameter : parameters) planned.push_back(parameter.planned);
  for (const size_t index : reverse_registration_order(parameters.size())) {
    orders[parameters[index].group].push_back(index);
  }
  std::vector<Planned> buckets;
  for (const auto& [group, order] : orders) {
    for (auto& bucket : plan_group(planned, order, group, bucket_bytes, world_size)) {
      buckets.push_back(std::move(bucket));
    }
  }
  std::stable_sort(buckets.begin(), buckets.end(),
                   [](const Planned& a, const Planned& b) { return a.last > b.last; });
  ShardPlan plan;
  plan.world_size = world_size;
  plan.partition = division.partition;
  const bool is_whole = division.partition == Partition::kParameters;
  std::vector<int> owners;
  if (is_whole && world_size > 0) owners = owners_of(parameters, world_size, division.loads);
  int64_t offset = 0;
  for (Planned& each : buckets) {
    plan.bounds.push_back(is_whole ? place_by_owner(each.bucket, owners, world_size)
                                   : equal_bounds(each.bucket, world_size));
    each.bucket.offset_bytes = offset;
    const int64_t bytes =
        each.bucket.padded_elements * static_cast<int64_t>(c10::elementSize(each.bucket.dtype));
    offset += (bytes + kAlignment - 1) / kAlignment * kAlignment;
    plan.buckets.buckets.push_back(std::move(each.bucket));
    plan.groups.push_back(each.group);
  }
  return plan;
}

}  // namespace farandole
