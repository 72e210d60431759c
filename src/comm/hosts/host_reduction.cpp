// SPDX-License-Identifier: Apache-2.0
#include "comm/hosts/host_reduction.h"

#include <algorithm>

#include "kernels/divide_kernels.h"
#include "kernels/reduce_kernels.h"

namespace farandole::comm::hosts {
namespace {

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
