// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/shard_plan.h"

#include <c10/core/ScalarType.h>

#include <algorithm>
#include <map>
#include <utility>

#include "farandole/error.h"

namespace farandole {
namespace {

constexpr int64_t kAlignment = 128;  // of buckets: two cache lines, which CPUs fetch together

void check_one_device(const std::vector<ShardedParameter>& parameters) {
  for (const ShardedParameter& parameter : parameters) {
    if (parameter.planned.device == parameters.front().planned.device) continue;
    throw InvalidArgument("a sharded optimizer got parameters on " +
                              parameters.front().planned.device.str() + " and on " +
                              parameter.planned.device.str() + ".",
                          "the shards of a rank are parts of one buffer, on one device.",
                          "make one optimizer for the parameters of each device.");
  }
}

/// A bucket before all of them are put in order.
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

}  // namespace

int64_t ShardPlan::shard_elements(size_t bucket) const {
  return buckets.buckets[bucket].padded_elements / world_size;
}

std::vector<ShardPiece> ShardPlan::pieces_of(int rank) const {
  std::vector<ShardPiece> pieces;
  for (size_t bucket = 0; bucket < buckets.buckets.size(); ++bucket) {
    const int64_t begin = shard_elements(bucket) * rank;
    const int64_t end = begin + shard_elements(bucket);
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
                          int world_size) {
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
  int64_t offset = 0;
  for (Planned& each : buckets) {
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
