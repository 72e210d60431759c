// SPDX-License-Identifier: Apache-2.0
#include "ddp/kept_plans.h"

#include <algorithm>
#include <utility>

namespace farandole {

ParameterKind ParameterKind::of(const at::Tensor& parameter) {
  return {parameter.requires_grad(), parameter.scalar_type(), parameter.device(),
          parameter.sizes().vec(), Buckets::strides_of_slot(parameter)};
}

bool ParameterKind::operator==(const ParameterKind& other) const {
  return is_active == other.is_active && dtype == other.dtype && device == other.device &&
         sizes == other.sizes && strides == other.strides;
}

int64_t KeptPlan::bytes() const {
  int64_t sum = 0;
  for (const auto& bucket : buckets->plan().buckets) sum += bucket.bytes();
  return sum;
}

void KeptPlans::put(KeptPlan plan) { plans_.push_back(std::move(plan)); }

std::optional<KeptPlan> KeptPlans::take(const std::vector<ParameterKind>& parameters) {
  const auto found = std::find_if(plans_.begin(), plans_.end(), [&](const KeptPlan& plan) {
    return plan.parameters == parameters;
  });
  if (found == plans_.end()) return std::nullopt;
  KeptPlan plan = std::move(*found);
  plans_.erase(found);
  return plan;
}

void KeptPlans::make_room(int64_t most_bytes) {
  std::sort(plans_.begin(), plans_.end(),
            [](const KeptPlan& a, const KeptPlan& b) { return a.last_round > b.last_round; });
  size_t kept = 0;
  for (int64_t bytes = 0; kept < std::min(plans_.size(), kMostPlans); ++kept) {
    bytes += plans_[kept].bytes();
    if (bytes > most_bytes) break;
  }
  plans_.erase(plans_.begin() + static_cast<std::ptrdiff_t>(kept), plans_.end());
}

void KeptPlans::forget_idle(uint64_t round) {
  const auto is_idle = [round](const KeptPlan& plan) {
    return plan.last_round + kMostIdleRounds < round;
  };
  plans_.erase(std::remove_if(plans_.begin(), plans_.end(), is_idle), plans_.end());
}

}  // namespace farandole
