// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <vector>

namespace farandole {

/// How the last synchronized backward went on this rank. Times are nanoseconds of comm::now_ns(),
/// one clock for all ranks of a host.
struct BackwardStats {
  struct Bucket {
    int64_t bytes;
    int64_t parameters;
    uint64_t ready_ns;     ///< its last gradient had come; it was launched
    uint64_t complete_ns;  ///< all ranks had launched it; 0 if that is not known
    uint64_t finish_ns;    ///< this rank's part of the reduction was done
  };
  /// What each rank told of itself.
  struct Rank {
    uint64_t begin_ns;  ///< its backward began
    uint64_t end_ns;    ///< it had its last gradient
  };
  uint64_t backward = 0;  ///< synchronized backward passes so far
  uint64_t plans = 0;     ///< of buckets, made so far; one that made a plan did not overlap
  uint64_t begin_ns = 0;
  uint64_t end_ns =
      0;  ///< the last gradient had come: begin..end is compute, hidden reduction included
  uint64_t finish_ns =
      0;  ///< end..finish is exposed communication, waiting for late ranks included
  int64_t copied_bytes = 0;          ///< of gradients that were not born in their buckets
  int latest_rank = -1;              ///< the rank that ended its compute last
  std::vector<Bucket> buckets = {};  ///< in the order of the plan
  std::vector<Rank> ranks = {};
};

}  // namespace farandole
