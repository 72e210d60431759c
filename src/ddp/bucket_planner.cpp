// SPDX-License-Identifier: Apache-2.0
#include "ddp/bucket_planner.h"

#include <algorithm>
#include <utility>

#include "ddp/allocation/aliased_slot.h"
#include "ddp/check_backward.h"
#include "ddp/fingerprint_check.h"
#include "farandole/error.h"

namespace farandole {
namespace {

/// Backward passes with a plan until memory is used as in all that follow: in the first, gradients
/// move into their buckets; in the second, they are born there.
constexpr int kUnsettledBackwards = 2;

/// Bytes of a gradient that is to be computed in its slot; 0: it is not.
size_t born_bytes(const ParameterGradient& parameter) {
  const at::Tensor& tensor = parameter.parameter();
  const bool may_be_born = parameter.is_active() && !parameter.is_sparse() && tensor.is_cpu() &&
                           tensor.nbytes() >= AliasedSlot::kLeastBytes;
  return may_be_born ? tensor.nbytes() : 0;
}

}  // namespace

BucketPlanner::BucketPlanner(const ReplicaGroup& group, const Reducer::Options& options,
                             GradientStore& gradients, PlannedBuckets& plan)
    : group_(group), options_(options), gradients_(gradients), plan_(plan) {}

void BucketPlanner::put_away(bool keeps) {
  if (keeps && plan_.consumer) {
    plan_.slots = gradients_.slots();
    kept_.put(std::move(plan_));
  }
  plan_ = empty_plan();
}

void BucketPlanner::take_plan() {
  order_.clear();
  is_ordered_.assign(gradients_.size(), false);
  plan_ = empty_plan();
  auto kept = kept_.take(plan_.parameters);
  if (!kept) return;
  plan_ = std::move(*kept);
  gradients_.assign_slots();
  plan_.slots.clear();
}

PlannedBuckets BucketPlanner::empty_plan() const {
  PlannedBuckets plan;
  plan.parameters = gradients_.kinds();
  plan.expected.assign(gradients_.size(), 1);
  plan.bucket_of.assign(gradients_.size(), 0);
  if (!options_.born_gradients || !group_.shared_memory()) return plan;
  std::vector<size_t> bytes;
  for (size_t index = 0; index < gradients_.size(); ++index) {
    bytes.push_back(born_bytes(gradients_[index]));
  }
  plan.births = BornGradients(bytes);
  return plan;
}

void BucketPlanner::note_arrival(size_t parameter) {
  if (plan_.buckets || is_ordered_[parameter]) return;
  is_ordered_[parameter] = true;
  order_.push_back(parameter);
}

void BucketPlanner::make_buckets(const std::optional<BucketPlan>& planned, Memory memory) {
  if (planned) check_planned(*planned);
  BucketPlan plan = planned ? *planned : own_plan();
  check_same_plan(plan);
  plan_.buckets =
      std::make_shared<Buckets>(std::move(plan), memory.shared ? group_.shared_memory() : nullptr,
                                memory.registered ? &group_ : nullptr);
  plan_.births.use(plan_.buckets, gradients_.parameters());
  assign_buckets();
  gradients_.assign_slots();
}

void BucketPlanner::assign_buckets() {
  for (size_t bucket = 0; bucket < plan_.buckets->size(); ++bucket) {
    for (const auto& slot : plan_.buckets->plan().buckets[bucket].slots) {
      plan_.bucket_of[slot.parameter] = bucket;
    }
  }
}

void BucketPlanner::finish_plan() {
  plan_.unsettled = kUnsettledBackwards;
  plan_.last_round = rounds_;
  ++plans_;
  kept_.make_room(gradients_.bytes());
}

void BucketPlanner::note_success() {
  plan_.last_round = ++rounds_;
  kept_.forget_idle(rounds_);
}

/// Parameters as their first gradients arrived, then those that got none, the last first. As many
/// entries on every rank, whatever is frozen there: the rest is -1.
std::vector<int64_t> BucketPlanner::first_order() const {
  std::vector<int64_t> order;
  const auto add = [&](size_t index) {
    const ParameterGradient& parameter = gradients_[index];
    if (parameter.is_active() && !parameter.is_sparse()) {
      order.push_back(static_cast<int64_t>(index));
    }
  };
  for (const size_t index : order_) add(index);
  for (const size_t index : reverse_registration_order(gradients_.size())) {
    if (!is_ordered_[index]) add(index);
  }
  order.resize(gradients_.size(), -1);
  return order;
}

/// In the order of rank 0.
BucketPlan BucketPlanner::own_plan() const {
  std::vector<PlannedParameter> planned;
  for (const at::Tensor& tensor : gradients_.parameters()) {
    planned.push_back({tensor.numel(), tensor.scalar_type(), tensor.device()});
  }
  const std::vector<int64_t> agreed = group_.broadcast(first_order());
  const std::vector<size_t> order(agreed.begin(), std::find(agreed.begin(), agreed.end(), -1));
  return make_bucket_plan(planned, order, options_.caps, group_.world_size());
}

/// The optimizer has planned for the parameters that were active when it was made.
void BucketPlanner::check_planned(const BucketPlan& plan) const {
  std::vector<bool> is_planned(gradients_.size());
  for (const auto& bucket : plan.buckets) {
    for (const auto& slot : bucket.slots) is_planned[slot.parameter] = true;
  }
  for (size_t index = 0; index < gradients_.size(); ++index) {
    const ParameterGradient& parameter = gradients_[index];
    if (parameter.is_sparse() || parameter.is_active() == is_planned[index]) continue;
    throw InvalidArgument("requires-grad-changed",
                          "requires_grad of '" + gradients_.names()[index] +
                              "' has changed since the sharded optimizer was made.",
                          "with gradients=\"shard\" over this group gradients are sent to ranks by "
                          "a plan from that time.",
                          "call rebuild() of the optimizer on every rank before the next forward.");
  }
}

/// Throws on every rank unless all have made the same plan of the same parameters.
void BucketPlanner::check_same_plan(const BucketPlan& plan) const {
  comm::FingerprintOfNumbers numbers;
  numbers.add(plan.fingerprint());
  numbers.add(gradients_.active_parameters());
  numbers.add(options_.wire_dtype ? static_cast<int64_t>(*options_.wire_dtype) : int64_t{-1});
  if (const auto rank = find_rank_that_differs(group_, numbers.value())) {
    throw_other_plan(*rank, group_.name());
  }
}

}  // namespace farandole
