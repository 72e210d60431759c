// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace farandole {

/// The last synchronized backward of this rank. Times are nanoseconds of comm::now_ns(), which is
/// one clock for all ranks of a host.
struct BackwardStats {
  struct Bucket {
    int64_t bytes;
    int64_t parameters;
    uint64_t ready_ns;     ///< its last gradient had arrived; it was launched
    uint64_t complete_ns;  ///< all ranks had launched it; 0 if that is not known
    uint64_t finish_ns;    ///< this rank had finished its part of the reduction
  };
  /// Times that each rank reported.
  struct Rank {
    uint64_t begin_ns;  ///< its backward began
    uint64_t end_ns;    ///< its last gradient had arrived
  };
  uint64_t backward = 0;  ///< synchronized backward passes so far
  uint64_t plans = 0;     ///< bucket plans made so far; a backward that made one did not overlap
  uint64_t begin_ns = 0;
  uint64_t end_ns =
      0;  ///< the last gradient had arrived: begin..end is compute, with overlapped reduction
  uint64_t finish_ns = 0;    ///< end..finish is exposed communication, with waiting for late ranks
  int64_t copied_bytes = 0;  ///< of gradients that were copied into their buckets
  int latest_rank = -1;      ///< the last rank to end its compute
  std::vector<Bucket> buckets = {};  ///< in the order of the plan
  std::vector<Rank> ranks = {};
};

}  // namespace farandole
