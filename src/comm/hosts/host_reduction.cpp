// SPDX-License-Identifier: Apache-2.0
#include "comm/hosts/host_reduction.h"

#include <algorithm>
#include <cstdint>
#include <cstring>

#include "kernels/reduce_kernels.h"

namespace farandole::comm::hosts {
namespace {

/// `values` may lie at any address.
template <class Integer>
void divide_each(void* values, size_t count, int divisor) {
  auto* place = static_cast<std::byte*>(values);
  for (size_t i = 0; i < count; ++i, place += sizeof(Integer)) {
    Integer each;
    std::memcpy(&each, place, sizeof(each));
    each = static_cast<Integer>(static_cast<int64_t>(each) / divisor);
    std::memcpy(place, &each, sizeof(each));
  }
}

/// Towards zero, as an average of integers on one host is.
void divide(void* values, size_t count, DataType dtype, int divisor) {
  switch (dtype) {
    case DataType::kInt64:
      return divide_each<int64_t>(values, count, divisor);
    case DataType::kInt32:
      return divide_each<int32_t>(values, count, divisor);
    case DataType::kInt16:
      return divide_each<int16_t>(values, count, divisor);
    case DataType::kInt8:
      return divide_each<int8_t>(values, count, divisor);
    default:
      return divide_each<uint8_t>(values, count, divisor);
  }
}

/// The smallest power of two that is no less than the ranks of any host.
int scale_for(const HostMap& map) {
  int most = 1;
  for (int host = 0; host < map.count(); ++host) most = std::max(most, map.size_of(host));
  int scale = 1;
  while (scale < most) scale *= 2;
  return scale;
}

}  // namespace

HostReduction::HostReduction(DataType dtype, ReduceOp op, const HostMap& map, int world_size)
    : dtype_(dtype),
      op_(op == ReduceOp::kAvg ? ReduceOp::kSum : op),
      averages_(op == ReduceOp::kAvg),
      world_size_(world_size),
      scale_(averages_ && dtype == DataType::kFloat16 ? scale_for(map) : 1) {}

void HostReduction::reduce_on_host(const std::vector<const void*>& sources, void* partial,
                                   size_t count) const {
  const Sources all{sources.data(), sources.size()};
  if (scale_ == 1) {
    comm::reduce(all, {&partial, 1}, count, dtype_, op_);
  } else {
    average(all, {&partial, 1}, count, dtype_, scale_);
  }
}

void HostReduction::combine(const std::vector<const void*>& partials, void* result,
                            size_t count) const {
  const Sources all{partials.data(), partials.size()};
  if (averages_ && is_floating(dtype_)) {
    return average(all, {&result, 1}, count, dtype_, static_cast<double>(world_size_) / scale_);
  }
  comm::reduce(all, {&result, 1}, count, dtype_, op_);
  if (averages_) divide(result, count, dtype_, world_size_);
}

}  // namespace farandole::comm::hosts
