// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <vector>

#include "comm/hosts/host_map.h"
#include "farandole/comm/types.h"

namespace farandole::comm::hosts {

/// How elements of several hosts are combined: on each host first, in rank order, then over hosts,
/// in host order. Between hosts they travel in their own dtype, so half types are rounded once on
/// each host and once at the end; both sums are formed in float32. Averages are divided at the end.
/// Those of float16 are scaled by a power of two on the host, so that the sum of a host does not
/// overflow where the average does not.
///
/// Threads: const and safe from any thread.
class HostReduction {
 public:
  HostReduction(DataType dtype, ReduceOp op, const HostMap& map, int world_size);

  /// Whether what one rank alone on its host has is what travels.
  bool leaves_single_source() const { return scale_ == 1; }
  /// partial[i] = op over `sources`[i], in rank order.
  void reduce_on_host(const std::vector<const void*>& sources, void* partial, size_t count) const;
  /// result[i] = op over `partials`[i], in host order; the average if that is the op.
  void combine(const std::vector<const void*>& partials, void* result, size_t count) const;

 private:
  DataType dtype_;
  ReduceOp op_;  ///< kSum in place of kAvg
  bool averages_;
  int world_size_;
  int scale_;  ///< what a host's sum is divided by
};

}  // namespace farandole::comm::hosts
