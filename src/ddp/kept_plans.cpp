// SPDX-License-Identifier: Apache-2.0
#include "ddp/kept_plans.h"

#include <algorithm>
#include <utility>

namespace farandole {

void KeptPlans::put(PlannedBuckets plan) { plans_.push_back(std::move(plan)); }

std::optional<PlannedBuckets> KeptPlans::take(const std::vector<ParameterKind>& parameters) {
  const auto found = std::find_if(plans_.begin(), plans_.end(), [&](const PlannedBuckets& plan) {
    return plan.parameters == parameters;
  });
  if (found == plans_.end()) return std::nullopt;
  PlannedBuckets plan = std::move(*found);
  plans_.erase(found);
  return plan;
}

void KeptPlans::make_room(int64_t most_bytes) {
  std::sort(plans_.begin(), plans_.end(), [](const PlannedBuckets& a, const PlannedBuckets& b) {
    return a.last_round > b.last_round;
  });
  size_t kept = 0;
  for (int64_t bytes = 0; kept < std::min(plans_.size(), kMostPlans); ++kept) {
    bytes += plans_[kept].bytes();
    if (bytes > most_bytes) break;
  }
  plans_.erase(plans_.begin() + static_cast<std::ptrdiff_t>(kept), plans_.end());
}

void KeptPlans::forget_idle(uint64_t round) {
  const auto is_idle = [round](const PlannedBuckets& plan) {
    return plan.last_round + kMostIdleRounds < round;
  };
  plans_.erase(std::remove_if(plans_.begin(), plans_.end(), is_idle), plans_.end());
}

}  // namespace farandole
