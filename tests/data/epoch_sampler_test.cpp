// SPDX-License-Identifier: Apache-2.0
#include "farandole/data/epoch_sampler.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <torch/data.h>
#include <torch/serialize.h>

#include <algorithm>
#include <cmath>
#include <map>
#include <numeric>
#include <random>
#include <sstream>

#include "farandole/data/distributed_bucket_batch_sampler.h"
#include "farandole/data/distributed_sampler.h"
#include "farandole/data/distributed_weighted_random_sampler.h"
#include "farandole/data/epoch_order.h"
#include "farandole/error.h"
#include "farandole/process_group/init.h"
#include "support/raised.h"

// That orders are those of torch's Python is tested in tests/python/test_samplers.py.

namespace farandole {
namespace {

using test::raised;
using testing::ElementsAre;
using testing::HasSubstr;
using Indices = std::vector<size_t>;

DistributedSamplerOptions sampler_of(int64_t rank, int64_t num_replicas) {
  DistributedSamplerOptions options;
  options.rank = rank;
  options.num_replicas = num_replicas;
  return options;
}

Indices rest_of(EpochSampler& sampler, size_t batch_size = 3) {
  Indices all;
  while (const auto batch = sampler.next(batch_size)) {
    all.insert(all.end(), batch->begin(), batch->end());
  }
  return all;
}

Indices pass_of(EpochSampler& sampler) {
  sampler.reset();
  return rest_of(sampler);
}

TEST(EpochSampler, GoesThroughEachEpochInAnotherOrder) {
  DistributedSampler sampler(20, sampler_of(0, 1));
  const Indices first = rest_of(sampler);
  EXPECT_EQ(sampler.next(3), std::nullopt);
  EXPECT_EQ(pass_of(sampler), first);
  sampler.set_epoch(1);
  const Indices second = pass_of(sampler);
  EXPECT_NE(second, first);
  EXPECT_THAT(second, testing::UnorderedElementsAreArray(first));
  EXPECT_EQ(sampler.size(), 20U);
}

TEST(EpochSampler, FollowsTheEpochThatItsBaseIsGiven) {
  DistributedSampler sampler(20, sampler_of(0, 1));
  sampler.set_epoch(4);
  const Indices expected = pass_of(sampler);
  DistributedSampler other(20, sampler_of(0, 1));
  torch::data::samplers::DistributedSampler<>& base = other;
  base.set_epoch(4);
  EXPECT_EQ(pass_of(other), expected);
  EXPECT_EQ(other.epoch(), 4U);
}

TEST(EpochSampler, CountsEachSampleOnceWithoutEvenDivisible) {
  Indices all;
  for (int64_t rank = 0; rank < 4; ++rank) {
    DistributedSamplerOptions options = sampler_of(rank, 4);
    options.even_divisible = false;
    DistributedSampler sampler(10, options);
    EXPECT_EQ(sampler.size(), rank < 2 ? 3U : 2U);
    const Indices own = pass_of(sampler);
    all.insert(all.end(), own.begin(), own.end());
  }
  std::sort(all.begin(), all.end());
  Indices expected(10);
  std::iota(expected.begin(), expected.end(), 0);
  EXPECT_EQ(all, expected);
}

struct Numbers : torch::data::datasets::Dataset<Numbers, int64_t> {
  int64_t get(size_t index) override { return static_cast<int64_t>(index); }
  std::optional<size_t> size() const override { return 23; }
};

TEST(EpochSampler, IsWhatALoaderTakes) {
  for (const size_t workers : {0U, 2U}) {
    DistributedSampler sampler(23, sampler_of(1, 2));
    const auto options = torch::data::DataLoaderOptions(4).workers(workers);
    auto loader = torch::data::make_data_loader(Numbers(), sampler, options);
    std::vector<std::vector<int64_t>> epochs;
    for (size_t epoch = 0; epoch < 2; ++epoch) {
      sampler.set_epoch(epoch);  // of the loader's copy too
      epochs.emplace_back();
      for (const std::vector<int64_t>& batch : *loader) {
        epochs.back().insert(epochs.back().end(), batch.begin(), batch.end());
      }
    }
    DistributedSampler alone(23, sampler_of(1, 2));
    for (size_t epoch = 0; epoch < 2; ++epoch) {
      alone.set_epoch(epoch);
      const Indices expected = pass_of(alone);
      EXPECT_EQ(epochs[epoch], std::vector<int64_t>(expected.begin(), expected.end()));
    }
  }
}

TEST(EpochSampler, GoesOnWithAnyNumberOfRanks) {
  std::mt19937 draw(11);
  const auto at_most = [&draw](size_t most) {
    return std::uniform_int_distribution<size_t>(0, most)(draw);
  };
  for (int round = 0; round < 300; ++round) {
    const size_t size = at_most(60);
    std::map<size_t, int> times;
    SamplerState state;
    for (int part = 0; part < 4; ++part) {  // the last one to the end
      const auto ranks = static_cast<int64_t>(1 + at_most(7));
      size_t consumed = 0;
      SamplerState next;
      for (int64_t rank = 0; rank < ranks; ++rank) {
        DistributedSamplerOptions options = sampler_of(rank, ranks);
        options.even_divisible = false;
        options.seed = 5;
        DistributedSampler sampler(size, options);
        if (part == 0) sampler.set_epoch(3);
        if (part > 0) sampler.load_state(state);
        const Indices own = pass_of(sampler);
        if (rank == 0) {
          consumed = part == 3 ? own.size() : at_most(own.size());
          next = sampler.state(consumed);
        }
        for (size_t i = 0; i < std::min(consumed, own.size()); ++i) ++times[own[i]];
      }
      state = next;
    }
    EXPECT_EQ(times.size(), size);
    for (const auto& [sample, count] : times) EXPECT_EQ(count, 1) << sample;
  }
}

TEST(EpochSampler, BeginsAtThePositionOnce) {
  DistributedSampler sampler(20, sampler_of(1, 2));
  sampler.set_epoch(7);
  const Indices whole = pass_of(sampler);
  const SamplerState state = sampler.state(4);
  DistributedSampler other(20, sampler_of(1, 2));
  other.load_state(state);
  EXPECT_EQ(other.epoch(), 7U);
  EXPECT_EQ(other.size(), 6U);
  other.set_epoch(7);
  EXPECT_EQ(pass_of(other), Indices(whole.begin() + 4, whole.end()));
  EXPECT_EQ(other.state(2), sampler.state(6));
  EXPECT_EQ(pass_of(other), whole);
  other.load_state(state);
  other.set_epoch(8);
  EXPECT_EQ(other.size(), 10U);
}

TEST(EpochSampler, IsSavedAndLoaded) {
  DistributedSampler sampler(20, sampler_of(0, 2));
  const Indices whole = pass_of(sampler);
  sampler.reset();
  sampler.next(3);
  std::stringstream stream;
  torch::serialize::OutputArchive written;
  sampler.save(written);
  written.save_to(stream);
  torch::serialize::InputArchive archive;
  archive.load_from(stream);
  DistributedSampler other(20, sampler_of(0, 2));
  other.load(archive);
  EXPECT_EQ(rest_of(other), Indices(whole.begin() + 3, whole.end()));
  torch::serialize::OutputArchive empty;
  std::stringstream nothing;
  empty.save_to(nothing);
  torch::serialize::InputArchive lacking;
  lacking.load_from(nothing);
  EXPECT_THAT(raised<InvalidArgument>([&] { other.load(lacking); }),
              HasSubstr("an archive without a sampler"));
}

TEST(EpochSampler, ListsItsStateByName) {
  DistributedSamplerOptions options = sampler_of(0, 3);
  options.seed = 9;
  DistributedSampler sampler(20, options);
  sampler.set_epoch(2);
  const SamplerState expected = {
      {"epoch", 2}, {"position", 6}, {"seed", 9}, {"shuffle", 1}, {"size", 20}};
  EXPECT_EQ(sampler.state(2), expected);
  EXPECT_EQ(sampler.state(7).at("position"), 20);
}

TEST(EpochSampler, RefusesTheStateOfOtherData) {
  DistributedSampler sampler(20, sampler_of(0, 2));
  const SamplerState right = sampler.state(3);
  const auto refuses = [&](const SamplerState& state, const std::string& why) {
    EXPECT_THAT(raised<InvalidArgument>([&] { sampler.load_state(state); }), HasSubstr(why));
    EXPECT_EQ(sampler.state(3), right);
  };
  refuses(DistributedSampler(21, sampler_of(0, 2)).state(1), "its 'size' is 21 and not 20");
  DistributedSamplerOptions in_order = sampler_of(0, 2);
  in_order.shuffle = false;
  refuses(DistributedSampler(20, in_order).state(1), "its 'shuffle' is 0 and not 1");
  refuses(DistributedWeightedRandomSampler({1.0}, 20, true, sampler_of(0, 2)).state(1),
          "it lacks 'shuffle'");
  BucketOptions buckets;
  buckets.num_replicas = 2;
  buckets.rank = 0;
  refuses(DistributedBucketBatchSampler(std::vector<int64_t>(20, 1), 4, buckets).state(1),
          "it has other names");
  SamplerState beyond = right;
  beyond["position"] = 21;
  refuses(beyond, "its 'position' is 21");
  beyond.erase("position");
  beyond["place"] = 1;
  refuses(beyond, "it lacks 'position'");
}

TEST(EpochSampler, RefusesWhatCannotBe) {
  const auto refusal = [](const auto& body) { return raised<InvalidArgument>(body); };
  EXPECT_THAT(refusal([] { DistributedSampler(1, sampler_of(2, 2)); }),
              HasSubstr("a sampler got rank 2 of 2 num_replicas"));
  EXPECT_THAT(refusal([] { DistributedSampler(1, sampler_of(-1, 2)); }), HasSubstr("rank -1"));
  EXPECT_THAT(refusal([] { DistributedSampler(1, sampler_of(0, 0)); }), HasSubstr("of 0"));
  EXPECT_THAT(refusal([] { DistributedSampler sampler(1); }), HasSubstr("no default group"));
  EXPECT_THAT(refusal([] { DistributedSampler::share(-1, sampler_of(0, 1)); }),
              HasSubstr("size -1"));
  DistributedSamplerOptions both = sampler_of(0, 1);
  both.drop_last = true;
  both.even_divisible = false;
  EXPECT_THAT(refusal([&] { DistributedSampler(1, both); }),
              HasSubstr("drop_last without even_divisible"));
  DistributedSampler sampler(5, sampler_of(0, 1));
  EXPECT_THAT(refusal([&] { sampler.reset(6); }), HasSubstr("of 5 samples was reset to 6"));
  sampler.reset(5);
  EXPECT_THAT(refusal([&] { DistributedSampler::share(5, sampler_of(0, 1)).state(-1); }),
              HasSubstr("after -1 samples"));
  EXPECT_THAT(refusal([&] { DistributedSampler::share(5, sampler_of(0, 1)).set_epoch(-1); }),
              HasSubstr("got epoch -1"));
}

// --- weights

TEST(DistributedWeightedRandomSampler, RefusesWeightsFromWhichNothingCanBeDrawn) {
  const auto refusal = [](const std::vector<double>& weights, int64_t count, bool replacement) {
    return raised<InvalidArgument>(
        [&] { DistributedWeightedRandomSampler(weights, count, replacement, sampler_of(0, 1)); });
  };
  EXPECT_THAT(refusal({1}, 0, true), HasSubstr("num_samples 0"));
  EXPECT_THAT(refusal({1, -1}, 1, true), HasSubstr("a negative or infinite weight or NaN"));
  EXPECT_THAT(refusal({1, HUGE_VAL}, 1, true), HasSubstr("a negative or infinite"));
  EXPECT_THAT(refusal({1, NAN}, 1, true), HasSubstr("a negative or infinite"));
  EXPECT_THAT(refusal({0, 0}, 1, true), HasSubstr("num_samples 1 and 0 weights above 0"));
  EXPECT_THAT(refusal({1, 0, 1}, 3, false), HasSubstr("num_samples 3 and 2 weights above 0"));
}

TEST(DistributedWeightedRandomSampler, DrawsByWeight) {
  DistributedWeightedRandomSampler sampler({0, 1, 3}, 4000, true, sampler_of(0, 1));
  const Indices drawn = pass_of(sampler);
  EXPECT_EQ(std::count(drawn.begin(), drawn.end(), 0U), 0);
  EXPECT_NEAR(static_cast<double>(std::count(drawn.begin(), drawn.end(), 2U)), 3000, 150);
}

// --- buckets

TEST(BucketedOrder, SortsUpAndDownInTurn) {
  const std::vector<int64_t> lengths = {5, 3, 9, 1, 7, 2, 8, 6, 4, 10};
  EXPECT_THAT(bucketed_order({0, 1, 2, 3, 4, 5, 6, 7, 8, 9}, lengths, 2, 2),
              ElementsAre(2, 0, 1, 3, 5, 7, 4, 6, 9, 8));
  EXPECT_THAT(bucketed_order({3, 2, 1}, {1, 1, 1, 1}, 2, INT64_MAX), ElementsAre(3, 2, 1));
}

TEST(DistributedBucketBatchSampler, GivesRanksBatchesOfSimilarLengths) {
  std::mt19937 draw(3);
  std::vector<int64_t> lengths(992);  // 62 batches for each rank
  for (int64_t& length : lengths) length = std::uniform_int_distribution<int64_t>(1, 512)(draw);
  std::vector<std::vector<Indices>> batches;
  for (int64_t rank = 0; rank < 2; ++rank) {
    BucketOptions options;
    options.rank = rank;
    options.num_replicas = 2;
    DistributedBucketBatchSampler sampler(lengths, 8, options);
    batches.emplace_back();
    while (const auto batch = sampler.next(1)) batches.back().push_back(*batch);
    EXPECT_EQ(batches.back().size(), sampler.size());
  }
  const auto longest = [&](const Indices& batch) {
    int64_t most = 0;
    for (const size_t index : batch) most = std::max(most, lengths[index]);
    return most;
  };
  for (size_t i = 0; i < batches[0].size(); ++i) {
    EXPECT_NEAR(static_cast<double>(longest(batches[0][i])),
                static_cast<double>(longest(batches[1][i])), 60);
  }
}

TEST(DistributedBucketBatchSampler, RefusesSizesThatAreNotPositive) {
  BucketOptions options;
  options.rank = 0;
  options.num_replicas = 1;
  EXPECT_THAT(raised<InvalidArgument>([&] { DistributedBucketBatchSampler({1}, 0, options); }),
              HasSubstr("batch_size 0"));
  options.bucket_batches = 0;
  EXPECT_THAT(raised<InvalidArgument>([&] { DistributedBucketBatchSampler({1}, 1, options); }),
              HasSubstr("bucket_batches 0"));
}

}  // namespace
}  // namespace farandole
