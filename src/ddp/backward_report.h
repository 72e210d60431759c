// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "farandole/comm/fingerprint.h"
#include "farandole/ddp/bucket_consumer.h"

namespace farandole {

/// What a rank reports to the others at the end of a backward.
struct BackwardReport {
  enum Flag : uint32_t {
    kAbandoned = 1,       ///< an exception left the backward
    kForwardFailed = 2,   ///< an exception left a forward since the last successful backward
    kWeighted = 4,        ///< its loss has a weight
    kJoined = 8,          ///< it has no more inputs and takes part with nothing to add
    kCountsUnused = 16,   ///< it counts missing gradients as zero
    kCheckedFinite = 32,  ///< it has checked the averages that it computed for Inf and NaN
  };
  /// The gradient of a parameter on that rank.
  enum Gradient : uint8_t {
    kNone = 0,     ///< none in this backward, nor since the last synchronized one
    kEarlier = 1,  ///< none in this backward, but an earlier one (gradient accumulation)
    kReady = 2,    ///< as many gradients as expected
    kLate = 3,     ///< one more than expected, after its bucket had been launched
    kEmpty = 4,    ///< autograd produced an undefined gradient, which counts as zero
  };

  uint32_t flags = 0;
  double weight = 1;
  uint64_t forward = 0;         ///< synchronized forward passes so far
  uint64_t begin_ns = 0;        ///< when the backward began, in comm::now_ns() of that rank's host
  uint64_t end_ns = 0;          ///< when its last gradient had arrived
  int64_t nonfinite = -1;       ///< the first parameter whose gradient has an Inf or NaN; -1: none
  comm::Fingerprint plan = {};  ///< of the active parameters
  std::vector<uint8_t> gradients = {};  ///< a Gradient for each parameter
  /// The bucket for which a communication hook failed on that rank; set from the BucketConsumer.
  std::optional<size_t> failed_bucket = {};

  bool has(Flag flag) const { return (flags & flag) != 0; }
  /// Whether that rank has a gradient to add to the average.
  bool has_gradient(size_t parameter) const {
    return gradients[parameter] != kNone && gradients[parameter] != kEmpty;
  }

  static size_t bytes(size_t parameters);
  RankReport pack() const;
  static BackwardReport unpack(const std::byte* report, size_t parameters);
};

}  // namespace farandole
