// SPDX-License-Identifier: Apache-2.0
#include "farandole/comm/bucket_reduction.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <limits>
#include <memory>
#include <numeric>
#include <random>
#include <thread>
#include <vector>

#include "farandole/comm/communicator.h"
#include "farandole/comm/events.h"
#include "farandole/error.h"
#include "kernels/half_types.h"
#include "kernels/reduce_kernels.h"
#include "support/forked_child.h"
#include "support/raised.h"
#include "support/ranks.h"

namespace farandole::test {
namespace {

using comm::BucketRange;
using comm::BucketReduction;
using comm::CollectiveOptions;
using comm::Communicator;
using comm::DataType;
using comm::ReduceOp;
using std::chrono::milliseconds;
using std::chrono::steady_clock;
using ::testing::AllOf;
using ::testing::HasSubstr;

constexpr DataType kFloat = DataType::kFloat32;
const std::vector<DataType> kDtypes{DataType::kFloat64, kFloat, DataType::kFloat16,
                                    DataType::kBFloat16};
const CollectiveOptions kDefault;

/// Any bits will do as long as sums of them round.
double value_of(int rank, uint64_t round, size_t i) {
  return std::sin(static_cast<double>(i * 31 + round * 7 + static_cast<size_t>(rank) * 17));
}

void write(std::byte* to, size_t i, DataType dtype, double value) {
  const auto single = static_cast<float>(value);
  const auto put = [&](auto element) {
    std::memcpy(to + i * sizeof(element), &element, sizeof(element));
  };
  if (dtype == DataType::kFloat64) return put(value);
  if (dtype == kFloat) return put(single);
  if (dtype == DataType::kFloat16) return put(comm::Float16::from(single));
  put(comm::BFloat16::from(single));
}

/// What `rank` puts into elements [0, count) in `round`.
std::vector<std::byte> data_of(int rank, uint64_t round, size_t count, DataType dtype) {
  std::vector<std::byte> data(count * comm::size_of(dtype));
  for (size_t i = 0; i < count; ++i) write(data.data(), i, dtype, value_of(rank, round, i));
  return data;
}

/// The average of all ranks' data_of(), divided by `divisor`.
std::vector<std::byte> average_of(int world_size, uint64_t round, size_t count, DataType dtype,
                                  double divisor) {
  std::vector<std::vector<std::byte>> data;
  std::vector<const void*> sources;
  for (int rank = 0; rank < world_size; ++rank) {
    data.push_back(data_of(rank, round, count, dtype));
    sources.push_back(data.back().data());
  }
  std::vector<std::byte> average(data.front().size());
  void* destination = average.data();
  comm::average({sources.data(), sources.size()}, {&destination, 1}, count, dtype, divisor);
  return average;
}

/// Elements of the smallest bucket.
size_t unit_of(int world_size, DataType dtype) {
  return static_cast<size_t>(world_size) * 64 / comm::size_of(dtype);
}

/// Buckets of so many units each, one after the other.
std::vector<BucketRange> buckets_of(const std::vector<size_t>& units, int world_size,
                                    DataType dtype) {
  std::vector<BucketRange> buckets;
  size_t offset = 0;
  for (const size_t size : units) {
    const size_t count = size * unit_of(world_size, dtype);
    buckets.push_back({offset, count, dtype});
    offset += count * comm::size_of(dtype);
  }
  return buckets;
}

/// A buffer, all of it buckets of one dtype, and its reduction.
struct Fixture {
  Communicator& group;
  DataType dtype;
  std::vector<BucketRange> buckets;
  size_t count;
  std::shared_ptr<comm::SymmetricMemory> memory;
  std::shared_ptr<BucketReduction> reduction;

  Fixture(Communicator& made_of, DataType of, const std::vector<size_t>& units,
          size_t report_bytes = 0)
      : group(made_of),
        dtype(of),
        buckets(buckets_of(units, group.world_size(), dtype)),
        count(std::accumulate(units.begin(), units.end(), size_t{0}) *
              unit_of(group.world_size(), dtype)),
        memory(group.shared_memory()->allocate_symmetric(count * comm::size_of(dtype))),
        reduction(group.shared_memory()->make_bucket_reduction(memory, buckets, report_bytes)) {}

  std::byte* local() const { return static_cast<std::byte*>(memory->local()); }
  void fill(uint64_t round) const {
    const auto data = data_of(group.rank(), round, count, dtype);
    std::memcpy(local(), data.data(), data.size());
  }
  bool holds(const std::vector<std::byte>& expected) const {
    return std::memcmp(local(), expected.data(), expected.size()) == 0;
  }
  bool holds_average(uint64_t round, double divisor) const {
    return holds(average_of(group.world_size(), round, count, dtype, divisor));
  }
  void publish_all() const {
    for (size_t bucket = 0; bucket < buckets.size(); ++bucket) reduction->publish(bucket);
  }
  /// A round of weights 1 that goes well.
  void good_round(uint64_t round, const CollectiveOptions& options = {}) const {
    fill(round);
    reduction->begin(1);
    publish_all();
    ASSERT_TRUE(reduction->finish(nullptr, true, options));
    ASSERT_TRUE(holds_average(round, group.world_size()));
  }
};

/// All buckets, in an order that depends on `seed`.
std::vector<size_t> shuffled(size_t buckets, uint64_t seed) {
  std::vector<size_t> order(buckets);
  std::iota(order.begin(), order.end(), size_t{0});
  std::shuffle(order.begin(), order.end(), std::mt19937_64(seed));
  return order;
}

/// Rounds in which each rank publishes in an order of its own.
void average_buckets(Communicator& group) {
  for (const DataType dtype : kDtypes) {
    const Fixture fixture(group, dtype, {3, 1, 0, 70, 5});
    for (uint64_t round = 0; round < 10; ++round) {
      fixture.fill(round);
      fixture.reduction->begin(1);
      const uint64_t seed = round * 100 + static_cast<uint64_t>(group.rank());
      for (const size_t bucket : shuffled(fixture.buckets.size(), seed)) {
        fixture.reduction->publish(bucket);
        fixture.reduction->progress();
      }
      ASSERT_TRUE(fixture.reduction->finish(nullptr, true, kDefault));
      ASSERT_TRUE(fixture.holds_average(round, group.world_size()));
    }
  }
}

TEST(BucketReduction, LeavesSkippedBucketsAsTheyAre) {
  run_thread_ranks(3, [](Communicator& group) {
    const Fixture fixture(group, kFloat, {2, 3, 1});
    BucketReduction& reduction = *fixture.reduction;
    const size_t begin = fixture.buckets[1].offset_bytes;
    const size_t end = fixture.buckets[2].offset_bytes;
    for (uint64_t round = 0; round < 20; ++round) {
      const bool skips = round % 2 == 0;
      auto expected = average_of(3, round, fixture.count, kFloat, 3);
      fixture.fill(round);
      if (skips) std::memcpy(expected.data() + begin, fixture.local() + begin, end - begin);
      reduction.begin(1);
      reduction.publish(0);
      skips ? reduction.skip(1) : reduction.publish(1);
      reduction.publish(2);
      ASSERT_TRUE(reduction.finish(nullptr, true, kDefault));
      ASSERT_TRUE(fixture.holds(expected));
      EXPECT_EQ(reduction.times_of(1).reduced_ns == 0, skips);
    }
  });
}

TEST(BucketReduction, TellsTheRecorderOfEachPieceOfWork) {
  run_thread_ranks(2, [](Communicator& group) {
    const Fixture fixture(group, kFloat, {2, 3, 1});
    std::vector<size_t> begun;
    size_t ended = 0;
    const auto record = [&](size_t bucket) {
      begun.push_back(bucket);
      return std::shared_ptr<void>(nullptr, [&](void*) { ++ended; });
    };
    fixture.reduction->set_recorder(record);
    fixture.good_round(1);
    EXPECT_THAT(begun, testing::UnorderedElementsAre(0, 1, 2));
    EXPECT_EQ(ended, 3U);
    fixture.reduction->set_recorder(nullptr);
    fixture.good_round(2);
    EXPECT_EQ(begun.size(), 3U);
  });
}

TEST(BucketReduction, AveragesOverThreads) {
  for (const int world_size : {1, 2, 3, 4}) run_thread_ranks(world_size, average_buckets);
}

TEST(BucketReduction, AveragesOverProcesses) {
  for (const int world_size : {1, 2, 3, 4}) run_process_ranks(world_size, average_buckets);
}

TEST(BucketReduction, GivesTheBitsOfAnAllReduceInAnyLayoutOfBuckets) {
  run_thread_ranks(3, [](Communicator& group) {
    for (const DataType dtype : kDtypes) {
      const std::vector<std::vector<size_t>> layouts{{105}, {5, 60, 40}, {1, 2, 3, 4, 5, 30, 60}};
      const size_t count = 105 * unit_of(group.world_size(), dtype);
      auto expected = data_of(group.rank(), 1, count, dtype);
      group.all_reduce(expected.data(), expected.data(), count, dtype, ReduceOp::kAvg);
      for (const auto& units : layouts) {
        const Fixture fixture(group, dtype, units);
        fixture.good_round(1);
        EXPECT_TRUE(fixture.holds(expected));
      }
    }
  });
}

TEST(BucketReduction, MixesDtypesAndLeavesWhatIsBetweenBucketsAlone) {
  run_thread_ranks(2, [](Communicator& group) {
    const auto memory = group.shared_memory()->allocate_symmetric(1024);
    const std::vector<BucketRange> buckets{{640, 64, DataType::kBFloat16}, {0, 32, kFloat}};
    const auto reduction = group.shared_memory()->make_bucket_reduction(memory, buckets, 0);
    auto* data = static_cast<std::byte*>(memory->local());
    std::memset(data, 0x5a, 1024);
    const double own = group.rank() + 1;
    for (size_t i = 0; i < 64; ++i) write(data + 640, i, DataType::kBFloat16, own);
    for (size_t i = 0; i < 32; ++i) write(data, i, kFloat, own);
    reduction->begin(1);
    reduction->publish(1 - static_cast<size_t>(group.rank()));
    reduction->publish(static_cast<size_t>(group.rank()));
    ASSERT_TRUE(reduction->finish(nullptr, true, kDefault));
    std::vector<std::byte> expected(1024, std::byte{0x5a});
    for (size_t i = 0; i < 64; ++i) write(expected.data() + 640, i, DataType::kBFloat16, 1.5);
    for (size_t i = 0; i < 32; ++i) write(expected.data(), i, kFloat, 1.5);
    EXPECT_EQ(std::memcmp(data, expected.data(), 1024), 0);
  });
}

TEST(BucketReduction, DividesByTheSumOfTheWeights) {
  for (const int world_size : {1, 3}) {
    run_thread_ranks(world_size, [](Communicator& group) {
      for (const DataType dtype : kDtypes) {
        const Fixture fixture(group, dtype, {2, 9});
        const std::vector<std::vector<double>> weights{{1, 1, 1},       {0, 1, 1}, {0, 0, 0},
                                                       {2.5, 0.125, 1}, {7, 3, 0}, {1, 0, 0}};
        for (size_t round = 0; round < weights.size(); ++round) {
          fixture.fill(round);
          fixture.reduction->begin(weights[round][static_cast<size_t>(group.rank())]);
          fixture.publish_all();
          ASSERT_TRUE(fixture.reduction->finish(nullptr, true, kDefault));
          const double sum = std::accumulate(weights[round].begin(),
                                             weights[round].begin() + group.world_size(), 0.0);
          ASSERT_TRUE(fixture.holds_average(round, sum == 0 ? 1 : sum)) << round;
        }
      }
    });
  }
}

/// The element as bits of an Inf of `dtype`, a floating-point type.
void write_inf(std::byte* data, size_t index, DataType dtype) {
  const auto put = [&](auto value) {
    std::memcpy(data + index * sizeof(value), &value, sizeof(value));
  };
  if (dtype == DataType::kFloat64) return put(std::numeric_limits<double>::infinity());
  if (dtype == DataType::kFloat32) return put(std::numeric_limits<float>::infinity());
  put(dtype == DataType::kFloat16 ? uint16_t{0x7c00} : uint16_t{0x7f80});
}

// Shards of more than one block, of one, and of a part of one; the bits are those of other rounds.
TEST(BucketReduction, LooksForInfsInWhatItStores) {
  for (const int world_size : thin_matrix() ? std::vector<int>{2} : std::vector<int>{1, 2, 3}) {
    run_thread_ranks(world_size, [](Communicator& group) {
      const auto world = static_cast<size_t>(group.world_size());
      for (const DataType dtype : kDtypes) {
        const Fixture fixture(group, dtype, {1100, 1, 0, 70});
        uint64_t round = 0;
        const auto run = [&](bool checks_finite) {
          fixture.reduction->begin(1, checks_finite);
          fixture.publish_all();
          return fixture.reduction->finish(nullptr, true, kDefault);
        };
        fixture.fill(round);
        ASSERT_TRUE(run(true));
        ASSERT_TRUE(fixture.reduction->are_finite());
        ASSERT_TRUE(fixture.holds_average(round, group.world_size()));
        for (const auto& bucket : fixture.buckets) {
          for (const size_t at : {size_t{0}, bucket.count / 2, bucket.count - 1}) {
            if (bucket.count == 0) continue;
            fixture.fill(++round);
            const bool spoils = round % world == static_cast<uint64_t>(group.rank());
            if (spoils) write_inf(fixture.local() + bucket.offset_bytes, at, dtype);
            ASSERT_TRUE(run(true));
            const size_t owner = at / (bucket.count / world);
            ASSERT_EQ(fixture.reduction->are_finite(), owner != static_cast<size_t>(group.rank()));
            if (spoils) write_inf(fixture.local() + bucket.offset_bytes, at, dtype);
            ASSERT_TRUE(run(false));
            ASSERT_TRUE(fixture.reduction->are_finite());
          }
        }
      }
    });
  }
}

TEST(BucketReduction, ReducesWhatAllHavePublishedBeforeTheRoundEnds) {
  run_thread_ranks(2, [](Communicator& group) {
    const Fixture fixture(group, kFloat, {4, 4});
    fixture.fill(1);
    fixture.reduction->begin(1);
    fixture.reduction->publish(1);
    const auto deadline = steady_clock::now() + rank_deadline();
    while (fixture.reduction->times_of(1).reduced_ns == 0) {
      ASSERT_LT(steady_clock::now(), deadline);
      fixture.reduction->progress();
    }
    EXPECT_EQ(fixture.reduction->times_of(0).published_ns, 0U);
    fixture.reduction->publish(0);
    ASSERT_TRUE(fixture.reduction->finish(nullptr, true, kDefault));
    EXPECT_TRUE(fixture.holds_average(1, 2));
  });
}

TEST(BucketReduction, ReducesWhileItWaitsForALatePeer) {
  for (const bool sleep_at_once : {false, true}) {
    run_thread_ranks(2, [&](Communicator& group) {
      const Fixture fixture(group, kFloat, {100, 4});
      CollectiveOptions options;
      options.sleep_at_once = sleep_at_once;
      fixture.fill(1);
      fixture.reduction->begin(1);
      if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(20));
      fixture.publish_all();
      if (group.rank() == 1) std::this_thread::sleep_for(milliseconds(200));
      ASSERT_TRUE(fixture.reduction->finish(nullptr, true, options));
      EXPECT_TRUE(fixture.holds_average(1, 2));
      if (group.rank() == 1) return;
      EXPECT_EQ(fixture.reduction->latest_rank(), 1);
      EXPECT_LT(fixture.reduction->times_of(1).reduced_ns + 20'000'000, comm::now_ns());
    });
  }
}

TEST(BucketReduction, TellsWhenBucketsWereWhereAndLeavesAnEvent) {
  run_thread_ranks(2, [](Communicator& group) {
    const Fixture fixture(group, kFloat, {100, 4});
    const uint64_t begin = comm::now_ns();
    fixture.good_round(1);
    for (const size_t bucket : {0, 1}) {
      const comm::BucketTimes times = fixture.reduction->times_of(bucket);
      EXPECT_LE(begin, times.published_ns + 1000);  // two clocks
      EXPECT_LE(times.published_ns, times.complete_ns);
      EXPECT_LE(times.complete_ns, times.reduced_ns);
      EXPECT_LE(times.reduced_ns, comm::now_ns() + 1000);
    }
    for (const comm::Event& event : comm::recent_events(4)) {
      if (event.operation != comm::OpKind::kBucketReduction || event.bytes == 0) continue;
      EXPECT_EQ(event.bytes, fixture.memory->bytes());
      EXPECT_THAT(describe(event), HasSubstr("bucket_reduction in group 'test'"));
      EXPECT_LE(event.begin_ns, event.arrived_ns);
      EXPECT_LE(event.arrived_ns, event.end_ns);
    }
    group.barrier();
  });
}

TEST(BucketReduction, EndsARoundThatARankGivesUpOnAllRanks) {
  run_thread_ranks(3, [](Communicator& group) {
    const Fixture fixture(group, kFloat, {4, 40});
    for (uint64_t round = 0; round < 20; ++round) {
      const bool gives_up = group.rank() == 1 && round % 2 == 0;
      fixture.fill(round);
      fixture.reduction->begin(1);
      fixture.reduction->publish(0);
      if (!gives_up) fixture.reduction->publish(1);
      EXPECT_EQ(fixture.reduction->finish(nullptr, !gives_up, kDefault), round % 2 != 0);
      ASSERT_TRUE(round % 2 == 0 || fixture.holds_average(round, 3));
      fixture.fill(99);  // it is this rank's alone again
      EXPECT_TRUE(fixture.holds(data_of(group.rank(), 99, fixture.count, kFloat)));
    }
  });
}

TEST(BucketReduction, TellsTheNotesOfAllRanksUntilTheNextRoundEnds) {
  run_thread_ranks(3, [](Communicator& group) {
    const Fixture fixture(group, kFloat, {4}, sizeof(uint64_t));
    EXPECT_EQ(fixture.reduction->report_bytes(), sizeof(uint64_t));
    const auto expect_notes = [&](uint64_t round) {
      for (int rank = 0; rank < group.world_size(); ++rank) {
        uint64_t report = 0;
        std::memcpy(&report, fixture.reduction->report_of(rank), sizeof(report));
        ASSERT_EQ(report, round * 10 + static_cast<uint64_t>(rank));
      }
    };
    for (uint64_t round = 0; round < 50; ++round) {
      fixture.fill(round);
      fixture.reduction->begin(1);
      fixture.publish_all();
      if (round != 0) expect_notes(round - 1);
      const uint64_t report = round * 10 + static_cast<uint64_t>(group.rank());
      const bool complete = (round + static_cast<uint64_t>(group.rank())) % 5 != 0;
      fixture.reduction->finish(&report, complete, kDefault);
      expect_notes(round);
    }
    EXPECT_THAT(raised<InvalidArgument>([&] { fixture.reduction->report_of(3); }),
                HasSubstr("report_of was called with rank=3"));
  });
}

TEST(BucketReduction, RunsBesideOtherCollectivesAndOnAnyThread) {
  run_thread_ranks(2, [](Communicator& group) {
    const Fixture fixture(group, kFloat, {4, 2, 7});
    for (uint64_t round = 0; round < 20; ++round) {
      std::thread([&] {
        fixture.fill(round);
        fixture.reduction->begin(1);
        fixture.reduction->publish(2);
        group.barrier();
      }).join();
      fixture.reduction->publish(1);
      float sum = 1;
      group.all_reduce(&sum, &sum, 1, kFloat, ReduceOp::kSum);
      EXPECT_EQ(sum, 2);
      std::thread([&] {
        fixture.reduction->publish(0);
        fixture.reduction->finish(nullptr, true, kDefault);
      }).join();
      ASSERT_TRUE(fixture.holds_average(round, 2));
    }
  });
}

/// Threads of their own for what ranks call beside the rounds.
TEST(BucketReduction, GoesOnWhileAnotherThreadIsInACollective) {
  run_thread_ranks(2, [](Communicator& group) {
    const Fixture fixture(group, kFloat, std::vector<size_t>(10, 200));
    for (uint64_t round = 0; round < 30; ++round) {
      const bool fails = round % 3 == 1;
      fixture.fill(round);
      fixture.reduction->begin(1);
      group.barrier();  // no rank begins after the mismatch
      std::thread other([&] {
        float sum = 1;
        for (int i = 0; i < 10; ++i) {
          group.all_reduce(&sum, &sum, 1, kFloat, ReduceOp::kMax);
        }
        const ReduceOp op = fails && group.rank() == 1 ? ReduceOp::kSum : ReduceOp::kMax;
        const auto call = [&] { group.all_reduce(&sum, &sum, 1, kFloat, op); };
        fails ? (void)raised<MismatchError>(call) : call();
      });
      try {
        fixture.publish_all();
      } catch (const InvalidArgument&) {
        EXPECT_TRUE(fails);  // the round is over
      }
      other.join();
      if (fails) {
        fixture.fill(round);
        fixture.reduction->begin(1);
        fixture.publish_all();
      }
      ASSERT_TRUE(fixture.reduction->finish(nullptr, true, kDefault));
      ASSERT_TRUE(fixture.holds_average(round, 2));
    }
  });
}

TEST(BucketReduction, MayOutliveItsGroup) {
  std::shared_ptr<BucketReduction> left;
  run_thread_ranks(1, [&](Communicator& group) { left = Fixture(group, kFloat, {1}).reduction; });
}

TEST(BucketReduction, RefusesMisuseBeforeAnythingIsTold) {
  run_thread_ranks(2, [](Communicator& group) {
    const Fixture fixture(group, kFloat, {4, 2}, 1);
    BucketReduction& reduction = *fixture.reduction;
    const char report = 'n';
    const auto refused = [](const auto& call, const char* text) {
      EXPECT_THAT(raised<InvalidArgument>(call),
                  AllOf(HasSubstr(text), HasSubstr("\nwhy: "), HasSubstr("\nfix: ")));
    };
    refused([&] { reduction.publish(0); }, "publish() was called outside of a round");
    refused([&] { reduction.finish(&report, true, kDefault); }, "finish() was called outside");
    for (const double weight : {-1.0, std::nan(""), std::numeric_limits<double>::infinity()}) {
      refused([&] { reduction.begin(weight); }, "begin() was called with the weight");
    }
    reduction.progress();
    fixture.fill(1);
    reduction.begin(1);
    refused([&] { reduction.begin(1); }, "begin() was called in the middle of a round");
    refused([&] { reduction.publish(2); }, "publish() was called with bucket 2");
    refused([&] { reduction.times_of(2); }, "times_of() was called with bucket 2");
    reduction.publish(0);
    refused([&] { reduction.publish(0); }, "publish() was called with bucket 0 again");
    refused([&] { reduction.skip(0); }, "skip() was called with bucket 0 again");
    refused([&] { reduction.finish(&report, true, kDefault); }, "bucket 1 was not published");
    refused([&] { reduction.finish(nullptr, false, kDefault); }, "without a report");
    reduction.publish(1);
    EXPECT_TRUE(reduction.finish(&report, true, kDefault));
    EXPECT_TRUE(fixture.holds_average(1, 2));
  });
}

TEST(BucketReduction, RefusesBucketsThatCannotBe) {
  run_thread_ranks(2, [](Communicator& group) {
    const auto memory = group.shared_memory()->allocate_symmetric(1024);
    const auto refused = [&](const std::vector<BucketRange>& buckets, const char* text) {
      EXPECT_THAT(raised<InvalidArgument>(
                      [&] { group.shared_memory()->make_bucket_reduction(memory, buckets, 0); }),
                  AllOf(HasSubstr("make_bucket_reduction was called with bucket"), HasSubstr(text),
                        HasSubstr("\nfix: ")));
    };
    refused({{0, 32, DataType::kInt32}}, "elements of this dtype");
    refused({{32, 32, kFloat}}, "a multiple of 64");
    refused({{0, 16, kFloat}}, "whole cache lines");
    refused({{0, 288, kFloat}}, "past the end of the memory");
    refused({{960, 32, kFloat}}, "past the end of the memory");
    refused({{2048, 0, kFloat}, {1088, 32, kFloat}}, "bucket 1");
    refused({{0, std::numeric_limits<size_t>::max(), kFloat}}, "past the end of the memory");
    refused({{128, 32, kFloat}, {0, 64, kFloat}}, "bucket 0, float32[32] at byte 128");
    EXPECT_THAT(raised<InvalidArgument>(
                    [&] { group.shared_memory()->make_bucket_reduction(nullptr, {}, 0); }),
                HasSubstr("with memory that is not of group 'test'"));
    EXPECT_NE(group.shared_memory()->make_bucket_reduction(memory, {}, 0), nullptr);
  });
}

TEST(BucketReduction, IsNotMadeOfBucketsThatDiffer) {
  run_thread_ranks(2, [](Communicator& group) {
    const auto memory = group.shared_memory()->allocate_symmetric(1024);
    const auto own = static_cast<size_t>(group.rank());
    const std::vector<BucketRange> swapped{{own * 128, 32, kFloat}, {128 - own * 128, 32, kFloat}};
    const auto differ = [&](const std::vector<BucketRange>& buckets, size_t report_bytes) {
      return raised<MismatchError>(
          [&] { group.shared_memory()->make_bucket_reduction(memory, buckets, report_bytes); });
    };
    EXPECT_THAT(differ(swapped, 0), HasSubstr("rank 0 and rank 1 passed different buckets"));
    EXPECT_THAT(differ({}, own), HasSubstr("rank 0 and rank 1 passed different buckets"));
    EXPECT_THAT(differ(std::vector<BucketRange>(own, {0, 32, kFloat}), 0),
                AllOf(HasSubstr("bucket_reduction(0 buckets"), HasSubstr("(1 buckets")));
    const Fixture fixture(group, kFloat, {1});
    fixture.good_round(1);
  });
}

TEST(BucketReduction, GoesOnAfterAPeerWasInAnotherCollective) {
  for (const bool peer_has_begun : {false, true}) {
    run_thread_ranks(3, [&](Communicator& group) {
      const Fixture fixture(group, kFloat, {400, 40}, 1);
      for (uint64_t round = 0; round < 20; ++round) {
        const bool elsewhere = group.rank() == static_cast<int>(round % 3);
        const char report = 'n';
        fixture.fill(round + 100);
        if (!elsewhere || peer_has_begun) {
          fixture.reduction->begin(1);
          fixture.publish_all();
        }
        const std::string text = raised<MismatchError>([&] {
          elsewhere ? group.barrier() : (void)fixture.reduction->finish(&report, true, kDefault);
        });
        EXPECT_THAT(text, AllOf(HasSubstr("barrier()"), HasSubstr("bucket_reduction(2 buckets")));
        EXPECT_THAT(raised<InvalidArgument>([&] { fixture.reduction->publish(0); }),
                    HasSubstr("outside of a round"));
        fixture.reduction->progress();
        fixture.fill(round);
        fixture.reduction->begin(1);
        fixture.publish_all();
        ASSERT_TRUE(fixture.reduction->finish(&report, true, kDefault));
        ASSERT_TRUE(fixture.holds_average(round, 3));
      }
    });
  }
}

TEST(BucketReduction, LosesItsRoundToAMismatchOfAnyCollective) {
  run_thread_ranks(2, [](Communicator& group) {
    const Fixture fixture(group, kFloat, {4, 4});
    fixture.fill(1);
    fixture.reduction->begin(1);
    fixture.reduction->publish(static_cast<size_t>(group.rank()));
    float value = 1;
    raised<MismatchError>(
        [&] { group.rank() == 0 ? group.barrier() : group.broadcast(&value, 1, kFloat, 0); });
    EXPECT_THAT(
        raised<InvalidArgument>([&] { fixture.reduction->finish(nullptr, false, kDefault); }),
        HasSubstr("finish() was called outside of a round"));
    for (uint64_t round = 2; round < 5; ++round) fixture.good_round(round);
  });
}

TEST(BucketReduction, IsNotTakenForAnotherOne) {
  run_thread_ranks(2, [](Communicator& group) {
    const Fixture first(group, kFloat, {4});
    const Fixture second(group, kFloat, {4});
    const Fixture& chosen = group.rank() == 0 ? first : second;
    chosen.reduction->begin(1);
    chosen.publish_all();
    raised<MismatchError>([&] { chosen.reduction->finish(nullptr, true, kDefault); });
    first.good_round(1);
    second.good_round(2);
  });
}

TEST(BucketReduction, NamesAPeerThatDiedBeforeItFinished) {
  run_process_ranks(3,
                    [](Communicator& group) {
                      const Fixture fixture(group, kFloat, {4, 4});
                      fixture.good_round(1);
                      fixture.reduction->begin(1);
                      fixture.reduction->publish(1);
                      if (group.rank() == 1) ::raise(SIGKILL);
                      fixture.reduction->publish(0);
                      const auto begin = steady_clock::now();
                      const auto finish = [&] {
                        fixture.reduction->finish(nullptr, true, kDefault);
                      };
                      EXPECT_THAT(raised<CommError>(finish),
                                  AllOf(HasSubstr("rank 1 (pid "), HasSubstr("why: ")));
                      EXPECT_LT(steady_clock::now() - begin, detection_limit());
                      EXPECT_THAT(raised<CommError>(finish), HasSubstr("rank 1 (pid "));
                      EXPECT_THAT(raised<CommError>([&] { fixture.reduction->begin(1); }),
                                  HasSubstr("rank 1 (pid "));
                    },
                    {Config(), {1}});
}

TEST(BucketReduction, NamesAPeerThatDiedInTheMiddleOfARoundWhenTheNextOneBegins) {
  run_process_ranks(2,
                    [](Communicator& group) {
                      const Fixture fixture(group, kFloat, {4});
                      if (group.rank() == 1) ::raise(SIGKILL);
                      const std::string first = raised<PeerFailure>([&] { group.barrier(); });
                      EXPECT_THAT(first, HasSubstr("rank 1 (pid "));
                      const auto begin = [&] { fixture.reduction->begin(1); };
                      EXPECT_EQ(raised<PeerFailure>(begin), first);
                      EXPECT_EQ(raised<PeerFailure>(begin), first);
                      EXPECT_FALSE(fixture.reduction->in_round());
                    },
                    {Config(), {1}});
}

TEST(BucketReduction, NamesAPeerThatDoesNotCome) {
  run_thread_ranks(2, [](Communicator& group) {
    const Fixture fixture(group, kFloat, {4, 4});
    fixture.reduction->begin(1);
    fixture.publish_all();
    const auto finish = [&] { fixture.reduction->finish(nullptr, true, {milliseconds(200)}); };
    if (group.rank() == 1) {
      std::this_thread::sleep_for(milliseconds(400));
      EXPECT_THAT(raised<AbortedError>(finish), HasSubstr("rank 0 gave up"));
      return;
    }
    EXPECT_THAT(raised<TimeoutError>(finish),
                AllOf(HasSubstr("bucket_reduction(2 buckets"), HasSubstr("rank 1 (pid "),
                      HasSubstr("reached its timeout of 200 ms")));
  });
}

TEST(BucketReduction, IsAbortedWithTheGroup) {
  run_thread_ranks(2, [](Communicator& group) {
    const Fixture fixture(group, kFloat, {4});
    fixture.reduction->begin(1);
    fixture.publish_all();
    if (group.rank() == 0) {
      std::this_thread::sleep_for(milliseconds(50));
      return group.abort("the test says so");
    }
    const auto finish = [&] { fixture.reduction->finish(nullptr, true, kDefault); };
    EXPECT_THAT(raised<AbortedError>(finish), HasSubstr("the test says so"));
    EXPECT_THAT(raised<AbortedError>(finish), HasSubstr("the test says so"));
  });
}

TEST(BucketReduction, RefusesAForkedChild) {
  run_process_ranks(2, [](Communicator& group) {
    const Fixture fixture(group, kFloat, {4});
    fixture.reduction->begin(1);
    ForkedChild child([&] {
      const auto refused = [](const auto& call) {
        return raised<CommError>(call).find("forked child") != std::string::npos;
      };
      return refused([&] { fixture.reduction->publish(0); }) &&
             refused([&] { fixture.reduction->progress(); }) &&
             refused([&] { fixture.reduction->begin(1); }) &&
             refused([&] { fixture.reduction->finish(nullptr, true, kDefault); });
    });
    EXPECT_TRUE(child.succeeded());
    fixture.publish_all();
    EXPECT_TRUE(fixture.reduction->finish(nullptr, true, kDefault));
  });
}

/// What a rank does in a random round, as all ranks can foretell.
struct Part {
  double weight;
  bool gives_up;

  Part(int rank, uint64_t round) {
    std::mt19937_64 random(round * 1000 + static_cast<uint64_t>(rank));
    weight = static_cast<double>(random() % 3);
    gives_up = random() % 40 == 0;
  }
};

/// Rounds of random weights, orders, naps and ranks that give up.
void random_rounds(Communicator& group, uint64_t rounds) {
  const Fixture fixture(group, kFloat, {1, 3, 200, 8, 1, 30, 2, 5});
  for (uint64_t round = 0; round < rounds; ++round) {
    const Part own(group.rank(), round);
    double weights = 0;
    bool complete = true;
    for (int rank = 0; rank < group.world_size(); ++rank) {
      weights += Part(rank, round).weight;
      complete = complete && !Part(rank, round).gives_up;
    }
    std::mt19937_64 random(round * 31337 + static_cast<uint64_t>(group.rank()));
    fixture.fill(round);
    fixture.reduction->begin(own.weight);
    for (const size_t bucket : shuffled(fixture.buckets.size(), random())) {
      const std::chrono::microseconds nap(random() % 16 == 0 ? random() % 2000 : 0);
      if (nap.count() != 0) std::this_thread::sleep_for(nap);
      if (own.gives_up && random() % 3 == 0) continue;
      fixture.reduction->publish(bucket);
      if (random() % 2 == 0) fixture.reduction->progress();
    }
    CollectiveOptions options;
    options.sleep_at_once = random() % 4 == 0;
    ASSERT_EQ(fixture.reduction->finish(nullptr, !own.gives_up, options), complete) << round;
    const double divisor = weights == 0 ? 1 : weights;
    ASSERT_TRUE(!complete || fixture.holds_average(round, divisor)) << round;
  }
}

TEST(BucketReduction, KeepsRandomRoundsApartAmongMoreRanksThanCores) {
  const uint64_t rounds = thin_matrix() ? 60 : 300;
  run_thread_ranks(6, [&](Communicator& group) { random_rounds(group, rounds); });
  run_process_ranks(5, [&](Communicator& group) { random_rounds(group, rounds); });
}

TEST(BucketReduction, KeepsRandomRoundsApartBetweenTwo) {
  run_thread_ranks(2, [&](Communicator& group) { random_rounds(group, thin_matrix() ? 60 : 500); });
}

}  // namespace
}  // namespace farandole::test
