// SPDX-License-Identifier: Apache-2.0
#include "farandole/ddp/bucket_plan.h"

#include <ATen/ops/empty.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <map>
#include <random>
#include <set>
#include <string>
#include <torch/csrc/distributed/c10d/reducer.hpp>
#include <tuple>
#include <utility>
#include <vector>

#include "farandole/error.h"
#include "support/raised.h"

namespace farandole {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using Parameters = std::vector<PlannedParameter>;

constexpr int64_t kManyBytes = int64_t{1} << 40;

PlannedParameter floats(int64_t elements) { return {elements, at::kFloat, at::kCPU}; }

/// Float32 parameters of these numbers of elements.
Parameters float_parameters(const std::vector<int64_t>& sizes) {
  Parameters parameters;
  for (const int64_t size : sizes) parameters.push_back(floats(size));
  return parameters;
}

std::vector<size_t> forward_order(size_t count) {
  std::vector<size_t> order = reverse_registration_order(count);
  std::reverse(order.begin(), order.end());
  return order;
}

BucketPlan plan_of(const Parameters& parameters, const BucketCaps& caps, int world_size = 1) {
  return make_bucket_plan(parameters, forward_order(parameters.size()), caps, world_size);
}

/// The parameters of each bucket.
std::vector<std::vector<size_t>> packed(const BucketPlan& plan) {
  std::vector<std::vector<size_t>> buckets;
  for (const BucketPlan::Bucket& bucket : plan.buckets) {
    buckets.emplace_back();
    for (const BucketPlan::Slot& slot : bucket.slots) buckets.back().push_back(slot.parameter);
  }
  return buckets;
}

int64_t bytes_of(const BucketPlan::Bucket& bucket) {
  return bucket.elements * static_cast<int64_t>(c10::elementSize(bucket.dtype));
}

// --- Packing

TEST(BucketPlan, OrderOfRegistrationIsReversed) {
  EXPECT_THAT(reverse_registration_order(3), ElementsAre(2, 1, 0));
  EXPECT_THAT(reverse_registration_order(0), IsEmpty());
}

TEST(BucketPlan, NoParametersMakeNoBuckets) {
  const BucketPlan plan = plan_of({}, {1, 1});
  EXPECT_THAT(plan.buckets, IsEmpty());
  EXPECT_THAT(plan.devices(), IsEmpty());
  EXPECT_EQ(plan.buffer_bytes(at::kCPU), 0);
}

TEST(BucketPlan, AParameterThatReachesTheCapClosesItsBucket) {
  const Parameters parameters = float_parameters({2, 2, 1, 1, 1, 1, 1});
  EXPECT_THAT(packed(plan_of(parameters, {16, 8})),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2, 3), ElementsAre(4, 5), ElementsAre(6)));
}

TEST(BucketPlan, AParameterLargerThanTheCapJoinsWhatIsInTheOpenBucket) {
  const Parameters parameters = float_parameters({1, 1000, 1});
  EXPECT_THAT(packed(plan_of(parameters, {16, 16})),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
}

TEST(BucketPlan, AHugeParameterNeedsNoMemoryToPlan) {
  const int64_t elements = (int64_t{1} << 40) + 1;
  const BucketPlan plan = plan_of({floats(elements)}, {16, 16}, 3);
  ASSERT_EQ(plan.buckets.size(), 1U);
  EXPECT_EQ(plan.buckets[0].elements, elements);
  EXPECT_EQ(plan.buckets[0].padded_elements % 48, 0);
  EXPECT_EQ(plan.buffer_bytes(at::kCPU), plan.buckets[0].padded_elements * 4);
}

TEST(BucketPlan, TheOrderDecidesWhatLiesTogether) {
  const BucketPlan plan = make_bucket_plan(float_parameters({1, 1, 1, 1}), {2, 0, 3, 1}, {8, 8}, 1);
  EXPECT_THAT(packed(plan), ElementsAre(ElementsAre(2, 0), ElementsAre(3, 1)));
}

TEST(BucketPlan, ParametersThatTheOrderLeavesOutHaveNoPlace) {
  const BucketPlan plan = make_bucket_plan(float_parameters({1, 1, 1}), {1}, {8, 8}, 1);
  EXPECT_THAT(packed(plan), ElementsAre(ElementsAre(1)));
}

TEST(BucketPlan, AListGivesTheFirstBucketsTheirCaps) {
  const Parameters parameters = float_parameters(std::vector<int64_t>(10, 1));
  BucketCaps caps{kManyBytes, 16};
  caps.list = {4, 12};
  EXPECT_THAT(packed(plan_of(parameters, caps)),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2, 3), ElementsAre(4, 5, 6, 7),
                          ElementsAre(8, 9)));
}

TEST(BucketPlan, ParametersOfOneDtypeAndDeviceShareBucketsInOrderOfCompletion) {
  const at::Device gpu(at::kCUDA, 0);
  const Parameters parameters = {{1, at::kFloat, at::kCPU}, {1, at::kBFloat16, at::kCPU},
                                 {1, at::kFloat, gpu},      {1, at::kBFloat16, at::kCPU},
                                 {1, at::kFloat, at::kCPU}, {1, at::kFloat, gpu}};
  const BucketPlan plan = plan_of(parameters, {kManyBytes, kManyBytes});
  EXPECT_THAT(packed(plan), ElementsAre(ElementsAre(1, 3), ElementsAre(0, 4), ElementsAre(2, 5)));
  EXPECT_EQ(plan.buckets[0].dtype, at::kBFloat16);
  EXPECT_EQ(plan.buckets[2].device, gpu);
  EXPECT_THAT(plan.devices(), ElementsAre(at::Device(at::kCPU), gpu));
}

TEST(BucketPlan, TwoGpusOfOneTypeDoNotShareABucket) {
  const Parameters parameters = {{1, at::kFloat, at::Device(at::kCUDA, 0)},
                                 {1, at::kFloat, at::Device(at::kCUDA, 1)}};
  const BucketPlan plan = plan_of(parameters, {kManyBytes, kManyBytes});
  EXPECT_EQ(plan.buckets.size(), 2U);
  EXPECT_EQ(plan.buckets[1].offset_bytes, 0);  // each device has a flat buffer of its own
}

TEST(BucketPlan, EachDtypeCountsItsOwnBuckets) {
  const Parameters parameters = {{1, at::kFloat, at::kCPU},  {1, at::kFloat, at::kCPU},
                                 {1, at::kFloat, at::kCPU},  {1, at::kDouble, at::kCPU},
                                 {1, at::kDouble, at::kCPU}, {1, at::kDouble, at::kCPU}};
  EXPECT_THAT(packed(plan_of(parameters, {1, kManyBytes})),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2), ElementsAre(3), ElementsAre(4, 5)));
}

TEST(BucketPlan, ParametersWithoutElementsHaveSlots) {
  const BucketPlan plan = plan_of(float_parameters({0, 3, 0}), {kManyBytes, kManyBytes});
  ASSERT_THAT(packed(plan), ElementsAre(ElementsAre(0, 1, 2)));
  EXPECT_EQ(plan.buckets[0].slots[0].elements, 0);
  EXPECT_EQ(plan.buckets[0].slots[2].elements, 0);
  const BucketPlan empty = plan_of(float_parameters({0}), {1, 1});
  ASSERT_EQ(empty.buckets.size(), 1U);
  EXPECT_EQ(empty.buckets[0].padded_elements, 0);
}

TEST(BucketPlan, TwoThousandTinyParametersMakeFewBuckets) {
  const Parameters parameters = float_parameters(std::vector<int64_t>(2000, 16));
  EXPECT_EQ(plan_of(parameters, {1024, 64 * 1024}).buckets.size(), 3U);
}

// --- The last bucket

BucketCaps caps_with_last(int64_t bytes, int64_t last_bytes) { return {bytes, bytes, last_bytes}; }

TEST(BucketPlan, TheLastBucketHoldsAsManyParametersAsFit) {
  const Parameters parameters = float_parameters(std::vector<int64_t>(10, 1));
  EXPECT_THAT(packed(plan_of(parameters, caps_with_last(16, 12))),
              ElementsAre(ElementsAre(0, 1, 2, 3), ElementsAre(4, 5, 6), ElementsAre(7, 8, 9)));
}

TEST(BucketPlan, TheLastBucketHoldsOneParameterAtLeast) {
  EXPECT_THAT(packed(plan_of(float_parameters({1, 1, 8}), caps_with_last(kManyBytes, 4))),
              ElementsAre(ElementsAre(0, 1), ElementsAre(2)));
  EXPECT_THAT(packed(plan_of(float_parameters({1, 8, 0}), caps_with_last(kManyBytes, 4))),
              ElementsAre(ElementsAre(0), ElementsAre(1, 2)));
}

TEST(BucketPlan, WhatFitsIntoTheLastBucketMakesOneBucket) {
  EXPECT_THAT(packed(plan_of(float_parameters({1, 1, 1}), caps_with_last(4, 12))),
              ElementsAre(ElementsAre(0, 1, 2)));
}

TEST(BucketPlan, EachDtypeHasItsLastBucket) {
  const Parameters parameters = {{2, at::kDouble, at::kCPU},
                                 {1, at::kDouble, at::kCPU},
                                 {1, at::kFloat, at::kCPU},
                                 {1, at::kFloat, at::kCPU},
                                 {1, at::kFloat, at::kCPU}};
  EXPECT_THAT(packed(plan_of(parameters, caps_with_last(kManyBytes, 8))),
              ElementsAre(ElementsAre(0), ElementsAre(1), ElementsAre(2), ElementsAre(3, 4)));
}

// --- Properties of random plans

struct RandomCase {
  Parameters parameters;
  std::vector<size_t> order;
  BucketCaps caps;
  int world_size;
};

RandomCase random_case(uint32_t seed) {
  std::mt19937 random(seed);
  const auto below = [&](int64_t n) { return static_cast<int64_t>(random()) % n; };
  const at::ScalarType dtypes[] = {at::kFloat,    at::kDouble,        at::kHalf,
                                   at::kBFloat16, at::kComplexDouble, at::kByte};
  const at::Device devices[] = {at::kCPU, at::Device(at::kCUDA, 0), at::Device(at::kCUDA, 1)};
  RandomCase result{{}, {}, {1 + below(4096), 1 + below(65536)}, 1 + static_cast<int>(below(9))};
  const int64_t dtype_count = 1 + below(6);
  const int64_t device_count = 1 + below(3);
  for (int64_t i = below(200); i > 0; --i) {
    result.parameters.push_back({below(10) == 0 ? below(20000) : below(100),
                                 dtypes[below(dtype_count)], devices[below(device_count)]});
  }
  if (below(2) == 0) result.caps.last_bytes = 1 + below(4096);
  if (below(2) == 0) result.caps.list = {1 + below(512), 1 + below(512)};
  result.order = forward_order(result.parameters.size());
  std::shuffle(result.order.begin(), result.order.end(), random);
  return result;
}

BucketPlan plan_of(const RandomCase& a) {
  return make_bucket_plan(a.parameters, a.order, a.caps, a.world_size);
}

using PlanCheck = std::function<void(const RandomCase&, const BucketPlan&)>;

void for_each_random_plan(const PlanCheck& check) {
  for (uint32_t seed = 0; seed < 500; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    const RandomCase random = random_case(seed);
    check(random, plan_of(random));
  }
}

std::vector<BucketPlan::Slot> by_offset(std::vector<BucketPlan::Slot> slots) {
  std::stable_sort(slots.begin(), slots.end(), [](const auto& a, const auto& b) {
    return std::tie(a.offset, a.elements) < std::tie(b.offset, b.elements);
  });
  return slots;
}

void expect_one_place(const RandomCase& random, const BucketPlan& plan) {
  std::multiset<size_t> placed;
  for (const BucketPlan::Bucket& bucket : plan.buckets) {
    int64_t end = 0;
    bool whole_lines = true;
    for (const BucketPlan::Slot& slot : by_offset(bucket.slots)) {
      placed.insert(slot.parameter);
      EXPECT_EQ(slot.offset, end);
      const bool ends_line =
          slot.elements * static_cast<int64_t>(c10::elementSize(bucket.dtype)) % 64 == 0;
      EXPECT_TRUE(whole_lines || !ends_line) << "large gradients begin at cache lines";
      whole_lines = ends_line;
      EXPECT_EQ(slot.elements, random.parameters[slot.parameter].elements);
      EXPECT_EQ(bucket.dtype, random.parameters[slot.parameter].dtype);
      EXPECT_EQ(bucket.device, random.parameters[slot.parameter].device);
      end += slot.elements;
    }
    EXPECT_EQ(bucket.elements, end);
  }
  EXPECT_EQ(placed, std::multiset<size_t>(random.order.begin(), random.order.end()));
}

TEST(RandomBucketPlan, GivesEveryElementExactlyOnePlace) { for_each_random_plan(expect_one_place); }

void expect_order(const RandomCase& random, const BucketPlan& plan) {
  std::vector<size_t> position(random.order.size());
  for (size_t i = 0; i < random.order.size(); ++i) position[random.order[i]] = i;
  size_t completed = 0;
  for (const BucketPlan::Bucket& bucket : plan.buckets) {
    ASSERT_FALSE(bucket.slots.empty());
    for (size_t i = 1; i < bucket.slots.size(); ++i) {
      EXPECT_LT(position[bucket.slots[i - 1].parameter], position[bucket.slots[i].parameter]);
    }
    const size_t last = position[bucket.slots.back().parameter];
    EXPECT_LE(completed, last);
    completed = last;
  }
}

TEST(RandomBucketPlan, KeepsTheOrderWithinAndBetweenBuckets) { for_each_random_plan(expect_order); }

/// All but its last parameter stay below the cap, or all stay within the cap of the last bucket.
void expect_within(const BucketPlan::Bucket& bucket, int64_t cap, int64_t last_cap) {
  const int64_t last_slot = bucket.slots.back().elements;
  const int64_t without_last =
      (bucket.elements - last_slot) * static_cast<int64_t>(c10::elementSize(bucket.dtype));
  const bool closed_in_time = without_last < cap;
  const bool fits_tail = bytes_of(bucket) <= last_cap;
  const auto filled = std::count_if(bucket.slots.begin(), bucket.slots.end(),
                                    [](const BucketPlan::Slot& slot) { return slot.elements > 0; });
  EXPECT_TRUE(closed_in_time || fits_tail || filled <= 1) << bytes_of(bucket) << " of " << cap;
}

void expect_caps(const RandomCase& random, const BucketPlan& plan) {
  std::map<std::pair<at::ScalarType, std::string>, size_t> before;
  for (const BucketPlan::Bucket& bucket : plan.buckets) {
    const size_t number = before[{bucket.dtype, bucket.device.str()}]++;
    const auto& list = random.caps.list;
    const int64_t usual = number == 0 && list.empty() ? random.caps.first_bytes : random.caps.bytes;
    expect_within(bucket, number < list.size() ? list[number] : usual, random.caps.last_bytes);
  }
}

TEST(RandomBucketPlan, KeepsToItsCaps) { for_each_random_plan(expect_caps); }

void expect_alignment(const RandomCase& random, const BucketPlan& plan) {
  std::map<std::string, int64_t> end;
  for (const BucketPlan::Bucket& bucket : plan.buckets) {
    const auto size = static_cast<int64_t>(c10::elementSize(bucket.dtype));
    EXPECT_EQ(bucket.padded_elements % (random.world_size * (64 / size)), 0);
    EXPECT_GE(bucket.padded_elements, bucket.elements);
    EXPECT_LT(bucket.padded_elements, bucket.elements + random.world_size * 64 / size);
    EXPECT_EQ(bucket.offset_bytes % 128, 0);
    EXPECT_GE(bucket.offset_bytes, end[bucket.device.str()]);
    EXPECT_LT(bucket.offset_bytes, end[bucket.device.str()] + 128);
    end[bucket.device.str()] = bucket.offset_bytes + bucket.padded_elements * size;
  }
  for (const at::Device device : plan.devices()) {
    EXPECT_EQ(plan.buffer_bytes(device), end[device.str()]);
  }
}

TEST(RandomBucketPlan, PadsAndAlignsBuckets) { for_each_random_plan(expect_alignment); }

void expect_torch_buckets(const RandomCase& random, const BucketPlan& plan) {
  if (random.caps.last_bytes != 0) return;  // torch has no such cap
  std::vector<at::Tensor> tensors;
  std::vector<int64_t> indices;
  for (const size_t parameter : random.order) {
    const PlannedParameter& planned = random.parameters[parameter];
    if (!planned.device.is_cpu()) return;  // torch makes tensors
    tensors.push_back(at::empty({planned.elements}, at::dtype(planned.dtype)));
    indices.push_back(static_cast<int64_t>(parameter));
  }
  if (tensors.empty()) return;
  std::vector<size_t> limits(random.caps.list.begin(), random.caps.list.end());
  if (limits.empty()) limits.push_back(static_cast<size_t>(random.caps.first_bytes));
  limits.push_back(static_cast<size_t>(random.caps.bytes));
  auto [theirs, caps] = c10d::compute_bucket_assignment_by_size(tensors, limits, {}, indices);
  EXPECT_THAT(packed(plan), ::testing::UnorderedElementsAreArray(theirs));
}

TEST(RandomBucketPlan, HasTheBucketsThatTorchMakes) { for_each_random_plan(expect_torch_buckets); }

TEST(RandomBucketPlan, IsTheSameForTheSameInput) {
  for_each_random_plan([](const RandomCase& random, const BucketPlan& plan) {
    EXPECT_EQ(plan_of(random).fingerprint(), plan.fingerprint());
  });
}

// --- Fingerprint

/// As a constant, so that another machine or release that disagrees is found.
TEST(BucketPlanFingerprint, IsTheSameOnEveryMachine) {
  EXPECT_EQ(BucketPlan{}.fingerprint().first, 0x28df63b7cc57c3cbU);
  EXPECT_EQ(plan_of(float_parameters({1, 2}), {1, 1}, 2).fingerprint().first, 0xcfd86763420b1e5aU);
}

TEST(BucketPlanFingerprint, DiffersWhenAnyFieldDiffers) {
  const Parameters parameters = {floats(3), floats(4), {5, at::kDouble, at::kCPU}};
  const BucketPlan plan = plan_of(parameters, {1, 1}, 2);
  std::set<std::pair<uint64_t, uint64_t>> found;
  const auto note = [&found](const BucketPlan& of) {
    const comm::Fingerprint own = of.fingerprint();
    found.insert({own.first, own.second});
  };
  note(plan);
  const std::vector<std::function<void(BucketPlan&)>> changes = {
      [](BucketPlan& p) { p.buckets[1].dtype = at::kInt; },
      [](BucketPlan& p) { p.buckets[1].device = at::Device(at::kCUDA, 0); },
      [](BucketPlan& p) { p.buckets[1].elements += 1; },
      [](BucketPlan& p) { p.buckets[1].padded_elements += 32; },
      [](BucketPlan& p) { p.buckets[1].offset_bytes += 128; },
      [](BucketPlan& p) { p.buckets[1].slots[0].parameter = 7; },
      [](BucketPlan& p) { p.buckets[1].slots[0].offset = 1; },
      [](BucketPlan& p) { p.buckets[1].slots[0].elements = 3; },
      [](BucketPlan& p) {
        p.buckets[1].slots.push_back({7, 4, 0});
      },
      [](BucketPlan& p) { p.buckets.pop_back(); },
      [](BucketPlan& p) { std::swap(p.buckets[0], p.buckets[1]); },
  };
  for (const auto& change : changes) {
    BucketPlan changed = plan;
    change(changed);
    note(changed);
  }
  EXPECT_EQ(found.size(), changes.size() + 1);
}

TEST(BucketPlanFingerprint, IsTheSameForRanksOnDifferentGpus) {
  const auto fingerprint_on = [](c10::DeviceIndex first, c10::DeviceIndex second) {
    return plan_of({{1, at::kFloat, at::Device(at::kCUDA, first)},
                    {1, at::kFloat, at::Device(at::kCUDA, second)}},
                   {1, 1})
        .fingerprint();
  };
  EXPECT_EQ(fingerprint_on(0, 1), fingerprint_on(2, 3));
  EXPECT_NE(fingerprint_on(0, 1), fingerprint_on(0, 0));
}

// --- Misuse

std::string error_of(const BucketCaps& caps, int world_size = 1,
                     const std::vector<size_t>& order = {0}) {
  return test::raised<InvalidArgument>([&] {
    make_bucket_plan({floats(1), floats(1)}, order, caps, world_size);
  });
}

TEST(BucketPlan, CapsMustHaveRoom) {
  EXPECT_THAT(error_of({0, 1}), HasSubstr("a bucket plan got a cap of 0 bytes."));
  EXPECT_THAT(error_of({1, -1}), HasSubstr("a cap of -1 bytes."));
  EXPECT_THAT(error_of({1, 1, -2}), HasSubstr("a cap of -2 bytes."));
  EXPECT_THAT(error_of({1, 1, 0, {5, 0}}), HasSubstr("a cap of 0 bytes."));
}

TEST(BucketPlan, WorldSizeMustBePositive) {
  EXPECT_THAT(error_of({1, 1}, 0), HasSubstr("a bucket plan got world_size 0."));
}

TEST(BucketPlan, OrderMustNameEachParameterOnce) {
  EXPECT_THAT(error_of({1, 1}, 1, {1, 1}), HasSubstr("parameter 1 in two places."));
  EXPECT_THAT(error_of({1, 1}, 1, {2}), HasSubstr("order with parameter 2."));
}

TEST(BucketPlan, ElementsCannotBeNegative) {
  const std::string error = test::raised<InvalidArgument>([] {
    plan_of({floats(1), floats(-5)}, {1, 1});
  });
  EXPECT_THAT(error, HasSubstr("parameter 1 with -5 elements."));
}

}  // namespace
}  // namespace farandole
