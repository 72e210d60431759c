// SPDX-License-Identifier: Apache-2.0
#include "ddp/kept_plans.h"

#include <ATen/ops/ones.h>
#include <gtest/gtest.h>

#include <utility>
#include <vector>

namespace farandole {
namespace {

/// Parameters of 100 float32 each, of which these are active.
std::vector<ParameterKind> active(const std::vector<bool>& which) {
  std::vector<ParameterKind> kinds;
  for (const bool is_active : which) {
    kinds.push_back(ParameterKind::of(at::ones({100}).set_requires_grad(is_active)));
  }
  return kinds;
}

PlannedBuckets plan_of(const std::vector<bool>& which, uint64_t last_round) {
  std::vector<PlannedParameter> planned;
  std::vector<size_t> order;
  for (size_t i = 0; i < which.size(); ++i) {
    planned.push_back({100, at::kFloat, at::kCPU});
    if (which[i]) order.push_back(i);
  }
  auto buckets =
      std::make_shared<Buckets>(make_bucket_plan(planned, order, {1 << 20, 1 << 20}, 1), nullptr);
  PlannedBuckets plan;
  plan.parameters = active(which);
  plan.buckets = std::move(buckets);
  plan.last_round = last_round;
  return plan;
}

std::vector<bool> only(size_t one) {
  std::vector<bool> which(8);
  which[one] = true;
  return which;
}

TEST(KeptPlans, FindsThePlanOfTheActiveParameters) {
  KeptPlans kept;
  kept.put(plan_of({true, false}, 1));
  kept.put(plan_of({true, true}, 2));
  EXPECT_FALSE(kept.take(active({false, true})));
  const auto plan = kept.take(active({true, false}));
  ASSERT_TRUE(plan);
  EXPECT_EQ(plan->last_round, 1U);
  EXPECT_FALSE(kept.take(active({true, false})));
  auto other = active({true, true});
  other[1].dtype = at::kDouble;
  EXPECT_FALSE(kept.take(other));
}

TEST(KeptPlans, LetsThoseGoThatWereNotUsedForLongest) {
  KeptPlans kept;
  for (size_t i = 0; i < 6; ++i) kept.put(plan_of(only(i), 10 - i));
  kept.make_room(1 << 20);
  for (size_t i = 0; i < 6; ++i) {
    EXPECT_EQ(kept.take(active(only(i))).has_value(), i < KeptPlans::kMostPlans) << i;
  }
}

TEST(KeptPlans, KeepsNoMoreBytesThanItMay) {
  KeptPlans kept;
  const int64_t bytes = plan_of(only(0), 0).bytes();
  EXPECT_GE(bytes, 400);
  for (size_t i = 0; i < 3; ++i) kept.put(plan_of(only(i), i));
  kept.make_room(2 * bytes);
  EXPECT_FALSE(kept.take(active(only(0))));
  EXPECT_TRUE(kept.take(active(only(1))));
  kept.make_room(bytes - 1);
  EXPECT_FALSE(kept.take(active(only(2))));
}

TEST(KeptPlans, LetsIdleOnesGo) {
  KeptPlans kept;
  kept.put(plan_of(only(0), 5));
  kept.forget_idle(5 + KeptPlans::kMostIdleRounds);
  kept.put(plan_of(only(1), 6));
  kept.forget_idle(6 + KeptPlans::kMostIdleRounds);
  EXPECT_FALSE(kept.take(active(only(0))));
  EXPECT_TRUE(kept.take(active(only(1))));
}

}  // namespace
}  // namespace farandole
