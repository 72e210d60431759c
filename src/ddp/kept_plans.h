// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "ddp/planned_buckets.h"
#include "farandole/export.h"

namespace farandole {

/// The plans that are not in use, for programs that freeze and unfreeze the same parameters
/// repeatedly (the two steps of a GAN).
///
/// Plans cost memory, so they are dropped: the least recently used one if there are more than
/// kMostPlans or their gradients have more bytes than those of all parameters, and each one after
/// kMostIdleRounds rounds of other plans. All ranks count rounds in the same way, so all have the
/// same plans. Gradients in a dropped plan stay valid: they keep the memory alive.
///
/// Threads: one at a time.
class FARANDOLE_API KeptPlans {
 public:
  static constexpr size_t kMostPlans = 4;
  static constexpr uint64_t kMostIdleRounds = 256;

  /// Local; the next make_room() counts it.
  void put(PlannedBuckets plan);
  /// Removes and returns the plan of these parameters; nullopt if there is none.
  std::optional<PlannedBuckets> take(const std::vector<ParameterKind>& parameters);
  /// Call after a plan was made: drops plans while there are too many or they have more bytes.
  void make_room(int64_t most_bytes);
  /// Call after the successful round `round`: drops plans that were unused for too long.
  void forget_idle(uint64_t round);
  void clear() { plans_.clear(); }

 private:
  std::vector<PlannedBuckets> plans_;
};

}  // namespace farandole
