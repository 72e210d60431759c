// SPDX-License-Identifier: Apache-2.0
#include "farandole/optim/shard_plan.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>
#include <utility>

#include "farandole/error.h"
#include "support/raised.h"

namespace farandole {
namespace {

using testing::HasSubstr;

constexpr at::ScalarType kTypes[] = {at::kFloat, at::kDouble, at::kBFloat16, at::kHalf,
                                     at::kComplexFloat};

ShardedParameter parameter_of(int64_t elements, size_t group = 0, at::ScalarType dtype = at::kFloat,
                              at::Device device = at::kCPU) {
  return {{elements, dtype, device}, group};
}

/// Some tiny, some empty, some larger than a bucket.
std::vector<ShardedParameter> random_parameters(std::mt19937& random) {
  std::vector<ShardedParameter> parameters;
  const size_t count = 1 + random() % 40;
  for (size_t i = 0; i < count; ++i) {
    const int64_t most[] = {1, 2, 50, 3000, 20000};
    const int64_t elements = static_cast<int64_t>(random() % 4001) % most[random() % 5];
    parameters.push_back(parameter_of(elements, random() % 3, kTypes[random() % 5]));
  }
  return parameters;
}

/// Every element of every parameter belongs to one piece of one rank, where its bucket has it.
void check_pieces(const ShardPlan& plan, const std::vector<ShardedParameter>& parameters) {
  std::vector<std::map<int64_t, int64_t>> covered(parameters.size());  // begin to end
  for (int rank = 0; rank < plan.world_size; ++rank) {
    for (const ShardPiece& piece : plan.pieces_of(rank)) {
      const BucketPlan::Bucket& bucket = plan.buckets.buckets[piece.bucket];
      EXPECT_EQ(bucket.dtype, parameters[piece.parameter].planned.dtype);
      EXPECT_EQ(plan.groups[piece.bucket], parameters[piece.parameter].group);
      EXPECT_GT(piece.elements, 0);
      EXPECT_LE(piece.shard_offset + piece.elements, plan.shard_elements(piece.bucket, rank));
      EXPECT_EQ(piece.bucket_offset, piece.shard_offset + plan.shard_begin(piece.bucket, rank));
      for (const auto& slot : bucket.slots) {
        if (slot.parameter != piece.parameter) continue;
        EXPECT_EQ(piece.bucket_offset, slot.offset + piece.parameter_offset);
      }
      const auto [at, is_new] = covered[piece.parameter].emplace(
          piece.parameter_offset, piece.parameter_offset + piece.elements);
      EXPECT_TRUE(is_new) << "two pieces begin at " << at->first;
    }
  }
  for (size_t i = 0; i < parameters.size(); ++i) {
    int64_t end = 0;
    for (const auto& [from, to] : covered[i]) {
      EXPECT_EQ(from, end);
      end = to;
    }
    EXPECT_EQ(end, parameters[i].planned.elements);
  }
}

TEST(ShardPlan, GivesEveryElementToExactlyOneRank) {
  std::mt19937 random(7);
  for (int trial = 0; trial < 200; ++trial) {
    const std::vector<ShardedParameter> parameters = random_parameters(random);
    const int world_size = 1 + static_cast<int>(random() % 64);
    const int64_t bucket_bytes = 1 + static_cast<int64_t>(random() % 20000);
    const ShardPlan plan = make_shard_plan(parameters, bucket_bytes, world_size);
    ASSERT_NO_FATAL_FAILURE(check_pieces(plan, parameters)) << "trial " << trial;
  }
}

TEST(ShardPlan, CutsBucketsIntoEqualShardsOfWholeCacheLines) {
  std::mt19937 random(11);
  for (int world_size = 1; world_size <= 64; ++world_size) {
    const ShardPlan plan = make_shard_plan(random_parameters(random), 4096, world_size);
    ASSERT_EQ(plan.groups.size(), plan.buckets.buckets.size());
    for (size_t i = 0; i < plan.groups.size(); ++i) {
      const BucketPlan::Bucket& bucket = plan.buckets.buckets[i];
      EXPECT_EQ(plan.shard_elements(i, 0) * world_size, bucket.padded_elements);
      const auto bytes = static_cast<int64_t>(c10::elementSize(bucket.dtype));
      EXPECT_EQ(plan.shard_elements(i, 0) * bytes % 64, 0);
      EXPECT_EQ(plan.shard_lengths(i),
                std::vector<int64_t>(static_cast<size_t>(world_size), plan.shard_elements(i, 0)));
      // No rank has more than its part and the padding of the last lines.
      EXPECT_LT(bucket.padded_elements - bucket.elements,
                64 * world_size * static_cast<int64_t>(bucket.slots.size() + 1));
    }
  }
}

/// Elements of each rank, without padding.
std::vector<int64_t> loads_of(const ShardPlan& plan) {
  std::vector<int64_t> loads;
  for (int rank = 0; rank < plan.world_size; ++rank) {
    loads.push_back(0);
    for (const ShardPiece& piece : plan.pieces_of(rank)) loads.back() += piece.elements;
  }
  return loads;
}

TEST(ShardPlan, GivesWholeParametersToRanks) {
  std::mt19937 random(19);
  for (int trial = 0; trial < 200; ++trial) {
    const std::vector<ShardedParameter> parameters = random_parameters(random);
    const int world_size = 1 + static_cast<int>(random() % 16);
    const int64_t bucket_bytes = 1 + static_cast<int64_t>(random() % 20000);
    const ShardPlan plan =
        make_shard_plan(parameters, bucket_bytes, world_size, {Partition::kParameters});
    ASSERT_NO_FATAL_FAILURE(check_pieces(plan, parameters)) << "trial " << trial;
    int64_t largest = 0;
    for (int rank = 0; rank < world_size; ++rank) {
      for (const ShardPiece& piece : plan.pieces_of(rank)) {
        EXPECT_EQ(piece.elements, parameters[piece.parameter].planned.elements);
        largest = std::max(largest, piece.elements);
      }
    }
    for (size_t i = 0; i < plan.groups.size(); ++i) {
      const BucketPlan::Bucket& bucket = plan.buckets.buckets[i];
      EXPECT_EQ(bucket.elements, bucket.padded_elements);
      for (int rank = 0; rank < world_size; ++rank) {
        const auto bytes = static_cast<int64_t>(c10::elementSize(bucket.dtype));
        EXPECT_EQ(plan.shard_begin(i, rank) * bytes % 64, 0);
      }
      EXPECT_EQ(plan.shard_begin(i, world_size), bucket.padded_elements);
    }
    const std::vector<int64_t> loads = loads_of(plan);
    const auto [least, most] = std::minmax_element(loads.begin(), loads.end());
    EXPECT_LE(*most - *least, largest);
  }
}

TEST(ShardPlan, GivesTheLargestParametersFirst) {
  std::vector<ShardedParameter> parameters;
  for (const int64_t elements : {5, 90, 10, 40, 50, 100, 5, 20, 30}) {
    parameters.push_back(parameter_of(elements));
  }
  const ShardDivision empty{Partition::kParameters};
  EXPECT_EQ(loads_of(make_shard_plan(parameters, 1000, 3, empty)),
            (std::vector<int64_t>{115, 120, 115}));
  // To those first that have the least.
  const ShardDivision loaded{Partition::kParameters, {350, 0, 350}};
  EXPECT_EQ(loads_of(make_shard_plan(parameters, 1000, 3, loaded)),
            (std::vector<int64_t>{0, 350, 0}));
}

TEST(ShardPlan, LaysBucketsOutOneAfterTheOther) {
  std::mt19937 random(13);
  const ShardPlan plan = make_shard_plan(random_parameters(random), 1000, 3);
  int64_t end = 0;
  for (const auto& bucket : plan.buckets.buckets) {
    EXPECT_GE(bucket.offset_bytes, end);
    EXPECT_EQ(bucket.offset_bytes % 128, 0);
    end = bucket.offset_bytes +
          bucket.padded_elements * static_cast<int64_t>(c10::elementSize(bucket.dtype));
  }
  EXPECT_EQ(plan.buckets.buffer_bytes(at::kCPU), end);
}

/// Backward reaches the last parameters first, so their bucket is to be full first.
TEST(ShardPlan, GoesFromTheLastParameterToTheFirst) {
  const ShardPlan plan =
      make_shard_plan({parameter_of(100), parameter_of(100, 1), parameter_of(100)}, 400, 2);
  ASSERT_EQ(plan.buckets.buckets.size(), 3U);
  for (size_t i = 0; i < 3; ++i) {
    EXPECT_EQ(plan.buckets.buckets[i].slots.front().parameter, 2 - i);
  }
  EXPECT_EQ(plan.groups, (std::vector<size_t>{0, 1, 0}));
}

/// So ranks need not talk about it.
TEST(ShardPlan, IsTheSameForTheSameParameters) {
  std::mt19937 random(17);
  const std::vector<ShardedParameter> parameters = random_parameters(random);
  EXPECT_EQ(make_shard_plan(parameters, 3000, 5).buckets.fingerprint(),
            make_shard_plan(parameters, 3000, 5).buckets.fingerprint());
}

TEST(ShardPlan, MayBeEmpty) {
  EXPECT_TRUE(make_shard_plan({}, 1000, 4).pieces_of(3).empty());
  EXPECT_TRUE(make_shard_plan({parameter_of(0)}, 1000, 4).pieces_of(0).empty());
}

TEST(ShardPlan, RefusesParametersOnSeveralDevices) {
  const std::string text = test::raised<InvalidArgument>([] {
    make_shard_plan({parameter_of(3), parameter_of(3, 0, at::kFloat, at::Device(at::kMeta))}, 1000,
                    2);
  });
  EXPECT_THAT(text, HasSubstr("a sharded optimizer got parameters on cpu and on meta."));
  EXPECT_THAT(text, HasSubstr("fix: make one optimizer for the parameters of each device."));
}

TEST(ShardPlan, RefusesWhatABucketPlanRefuses) {
  test::raised<InvalidArgument>([] { make_shard_plan({parameter_of(3)}, 1000, 0); });
  test::raised<InvalidArgument>([] { make_shard_plan({parameter_of(3)}, 0, 1); });
  test::raised<InvalidArgument>([] { make_shard_plan({parameter_of(-3)}, 1000, 1); });
}

}  // namespace
}  // namespace farandole
