// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "farandole/ddp/bucket_consumer.h"

namespace farandole {

/// What a rank says of its backward when it has ended.
struct RoundNote {
  enum Flag : uint32_t {
    kAbandoned = 1,      ///< an exception left the backward
    kForwardFailed = 2,  ///< one left a forward since the last backward that went well
    kWeighted = 4,       ///< its loss has a weight
    kJoined = 8,         ///< it has no more inputs and takes part for the others
    kCountsUnused = 16,  ///< it takes missing gradients for zero
    kLooked = 32,        ///< at the averages that it made, for Inf and NaN
  };
  /// What happened to a parameter on that rank.
  enum Gradient : uint8_t {
    kNone = 0,     ///< no gradient in this backward, nor since the last that was synchronized
    kEarlier = 1,  ///< none in this backward, but one before (gradient accumulation)
    kReady = 2,    ///< as many gradients as expected
    kLate = 3,     ///< one more, after its bucket had been launched
    kEmpty = 4,    ///< autograd came, but brought nothing: counts as zero
  };

  uint32_t flags = 0;
  double weight = 1;
  uint64_t forward = 0;    ///< forward passes that are to be synchronized, so far
  uint64_t begin_ns = 0;   ///< when the backward began, in comm::now_ns() of that rank's host
  uint64_t end_ns = 0;     ///< when it had its last gradient
  int64_t nonfinite = -1;  ///< the first parameter whose gradient has an Inf or NaN; -1: none
  uint64_t plan = 0;       ///< tells plans for different active parameters apart
  std::vector<uint8_t> gradients = {};  ///< a Gradient for each parameter
  /// The bucket for which a communication hook failed there; told by the BucketConsumer, not here.
  std::optional<size_t> failed_bucket = {};

  bool has(Flag flag) const { return (flags & flag) != 0; }
  /// Whether that rank has something to add to the average.
  bool has_gradient(size_t parameter) const {
    return gradients[parameter] != kNone && gradients[parameter] != kEmpty;
  }

  static size_t bytes(size_t parameters);
  Note pack() const;
  static RoundNote unpack(const std::byte* note, size_t parameters);
};

}  // namespace farandole
