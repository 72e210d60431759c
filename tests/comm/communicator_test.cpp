// SPDX-License-Identifier: Apache-2.0
// The conformance suite: what every communicator must do. Run over rank counts, sizes and ways of
// running ranks; a new backend adds one line to the instantiation at the end.
#include "farandole/comm/communicator.h"

#include <gtest/gtest.h>

#include <cstring>
#include <ostream>
#include <string>
#include <tuple>

#include "support/ranks.h"
#include "support/typed_data.h"

namespace farandole::test {
namespace {

using comm::Communicator;
using comm::DataType;
using comm::OpKind;
using comm::ReduceOp;

/// Runs a body on ranks: as threads or as processes.
using Runner = void (*)(int, const RankBody&, const Config&);

struct RunnerName {
  const char* name;
  Runner run;
};

void as_threads(int world_size, const RankBody& body, const Config& config) {
  run_thread_ranks(world_size, body, config);
}
void as_processes(int world_size, const RankBody& body, const Config& config) {
  run_process_ranks(world_size, body, config);
}

/// Small staging slots, so that modest sizes take many chunks.
Config small_slots() {
  Config config;
  config.staging_bytes = 8192;
  return config;
}

struct Case {
  RunnerName runner;
  int world_size;
  Config config;
  std::string name;
};

void PrintTo(const Case& instance, std::ostream* out) { *out << instance.name; }

class CommunicatorConformance : public ::testing::TestWithParam<Case> {
 protected:
  void run(const RankBody& body) const {
    GetParam().runner.run(GetParam().world_size, body, GetParam().config);
  }
};

/// Counts around what matters: nothing, one, inline data, direct, one chunk, several chunks, odd
/// tails.
std::vector<size_t> counts() {
  if (thin_matrix()) return {0, 1, 3, 25, 1000, 20011};
  return {0, 1, 3, 6, 7, 24, 25, 64, 257, 1000, 4096, 8193, 20011, 70001};
}

TypedData input_of(int rank, DataType dtype, size_t count) {
  TypedData data(dtype, count);
  for (size_t i = 0; i < count; ++i) data.set(i, contribution(rank, i, dtype));
  return data;
}

/// True unless an element is wrong, which it reports once.
::testing::AssertionResult holds_reduction(const TypedData& data, size_t offset, size_t count,
                                           int world_size, DataType dtype, ReduceOp op) {
  for (size_t i = 0; i < count; ++i) {
    const double expected = expected_reduction(world_size, offset + i, dtype, op);
    if (data.get(i) == expected) continue;
    return ::testing::AssertionFailure()
           << name_of(dtype) << "[" << count << "] " << name_of(op) << ": element " << i << " is "
           << data.get(i) << ", not " << expected;
  }
  return ::testing::AssertionSuccess();
}

::testing::AssertionResult holds_contribution(const TypedData& data, size_t at, size_t offset,
                                              size_t count, int rank, DataType dtype) {
  for (size_t i = 0; i < count; ++i) {
    const auto expected = static_cast<double>(contribution(rank, offset + i, dtype));
    if (data.get(at + i) == expected) continue;
    return ::testing::AssertionFailure() << name_of(dtype) << ": element " << at + i << " is "
                                         << data.get(at + i) << ", not " << expected;
  }
  return ::testing::AssertionSuccess();
}

TEST_P(CommunicatorConformance, AllReducesEveryDtypeAndOperationInAndOutOfPlace) {
  run([](Communicator& group) {
    const int world = group.world_size();
    for (const DataType dtype : all_dtypes()) {
      for (const ReduceOp op : all_reduce_ops()) {
        if (!has_reduction(dtype, op)) continue;
        for (const size_t count : counts()) {
          TypedData input = input_of(group.rank(), dtype, count);
          TypedData output(dtype, count);
          group.all_reduce(input.data(), output.data(), count, dtype, op);
          ASSERT_TRUE(holds_reduction(output, 0, count, world, dtype, op));
          ASSERT_TRUE(holds_contribution(input, 0, 0, count, group.rank(), dtype));
          group.all_reduce(input.data(), input.data(), count, dtype, op);
          ASSERT_TRUE(holds_reduction(input, 0, count, world, dtype, op));
        }
      }
    }
  });
}

TEST_P(CommunicatorConformance, ReduceScattersShardsInAndOutOfPlace) {
  run([](Communicator& group) {
    const auto world = static_cast<size_t>(group.world_size());
    const auto rank = static_cast<size_t>(group.rank());
    for (const DataType dtype : all_dtypes()) {
      const ReduceOp op = dtype == DataType::kBool ? ReduceOp::kMax : ReduceOp::kSum;
      for (const size_t count : counts()) {
        TypedData input = input_of(group.rank(), dtype, count * world);
        TypedData output(dtype, count);
        group.reduce_scatter(input.data(), output.data(), count, dtype, op);
        ASSERT_TRUE(holds_reduction(output, rank * count, count, group.world_size(), dtype, op));
        group.reduce_scatter(input.data(), input.at(rank * count), count, dtype, op);
        TypedData shard(dtype, count);
        std::memcpy(shard.data(), input.at(rank * count), count * size_of(dtype));
        ASSERT_TRUE(holds_reduction(shard, rank * count, count, group.world_size(), dtype, op));
      }
    }
  });
}

TEST_P(CommunicatorConformance, AllGathersInRankOrderInAndOutOfPlace) {
  run([](Communicator& group) {
    const auto world = static_cast<size_t>(group.world_size());
    const DataType dtype = DataType::kInt16;
    for (const size_t count : counts()) {
      TypedData input = input_of(group.rank(), dtype, count);
      TypedData output(dtype, count * world);
      group.all_gather(input.data(), output.data(), count, dtype);
      TypedData in_place(dtype, count * world);
      void* own = in_place.at(static_cast<size_t>(group.rank()) * count);
      if (count != 0) std::memcpy(own, input.data(), count * size_of(dtype));
      group.all_gather(own, in_place.data(), count, dtype);
      for (size_t peer = 0; peer < world; ++peer) {
        const int source = static_cast<int>(peer);
        ASSERT_TRUE(holds_contribution(output, peer * count, 0, count, source, dtype));
        ASSERT_TRUE(holds_contribution(in_place, peer * count, 0, count, source, dtype));
      }
    }
  });
}

TEST_P(CommunicatorConformance, BroadcastsFromEveryRoot) {
  run([](Communicator& group) {
    for (int root = 0; root < group.world_size(); ++root) {
      for (const size_t count : counts()) {
        TypedData data = input_of(group.rank(), DataType::kFloat32, count);
        group.broadcast(data.data(), count, DataType::kFloat32, root);
        ASSERT_TRUE(holds_contribution(data, 0, 0, count, root, DataType::kFloat32));
      }
    }
  });
}

TEST_P(CommunicatorConformance, ReducesGathersAndScattersAtTheLastRoot) {
  run([](Communicator& group) {
    const auto world = static_cast<size_t>(group.world_size());
    const int root = group.world_size() - 1;
    const bool is_root = group.rank() == root;
    const DataType dtype = DataType::kBFloat16;
    for (const size_t count : counts()) {
      TypedData input = input_of(group.rank(), dtype, count);
      TypedData reduced(dtype, count);
      group.reduce(input.data(), is_root ? reduced.data() : nullptr, count, dtype, ReduceOp::kSum,
                   root);
      TypedData gathered(dtype, count * world);
      group.gather(input.data(), is_root ? gathered.data() : nullptr, count, dtype, root);
      TypedData blocks = input_of(group.rank(), dtype, count * world);
      TypedData block(dtype, count);
      group.scatter(is_root ? blocks.data() : nullptr, block.data(), count, dtype, root);
      const size_t own = static_cast<size_t>(group.rank()) * count;
      ASSERT_TRUE(holds_contribution(block, 0, own, count, root, dtype));
      if (!is_root) continue;
      ASSERT_TRUE(holds_reduction(reduced, 0, count, group.world_size(), dtype, ReduceOp::kSum));
      for (size_t peer = 0; peer < world; ++peer) {
        ASSERT_TRUE(
            holds_contribution(gathered, peer * count, 0, count, static_cast<int>(peer), dtype));
      }
    }
  });
}

TEST_P(CommunicatorConformance, ExchangesBlocksAllToAll) {
  run([](Communicator& group) {
    const auto world = static_cast<size_t>(group.world_size());
    const DataType dtype = DataType::kInt64;
    for (const size_t count : counts()) {
      TypedData input = input_of(group.rank(), dtype, count * world);
      TypedData output(dtype, count * world);
      group.all_to_all(input.data(), output.data(), count, dtype);
      const size_t own = static_cast<size_t>(group.rank()) * count;
      for (size_t peer = 0; peer < world; ++peer) {
        ASSERT_TRUE(
            holds_contribution(output, peer * count, own, count, static_cast<int>(peer), dtype));
      }
    }
  });
}

TEST_P(CommunicatorConformance, TakesSymmetricMemoryAtDifferentOffsetsAndMixedWithOrdinary) {
  run([](Communicator& group) {
    const DataType dtype = DataType::kFloat32;
    const auto world = static_cast<size_t>(group.world_size());
    const auto rank = static_cast<size_t>(group.rank());
    for (const size_t count : counts()) {
      const size_t bytes = (count * world + 64) * sizeof(float);
      auto memory = group.allocate_symmetric(2 * bytes);
      auto* base = static_cast<std::byte*>(memory->local());
      std::byte* in = base + rank * 4;  // offsets may differ from rank to rank
      std::byte* out = base + bytes + rank * 8;
      TypedData input = input_of(group.rank(), dtype, count * world);
      TypedData output(dtype, count * world);
      const auto fill_in = [&](size_t elements) {
        if (elements != 0) std::memcpy(in, input.data(), elements * 4);
      };
      const auto take = [&](const std::byte* from, size_t elements) {
        if (elements != 0) std::memcpy(output.data(), from, elements * 4);
      };
      fill_in(count);
      group.all_reduce(in, out, count, dtype, ReduceOp::kSum);
      take(out, count);
      ASSERT_TRUE(holds_reduction(output, 0, count, group.world_size(), dtype, ReduceOp::kSum));
      group.all_reduce(in, in, count, dtype, ReduceOp::kSum);
      take(in, count);
      ASSERT_TRUE(holds_reduction(output, 0, count, group.world_size(), dtype, ReduceOp::kSum));
      // Rank 0 from ordinary memory, the others from symmetric memory.
      fill_in(count);
      const void* mixed = rank == 0 ? input.data() : in;
      group.all_reduce(mixed, out, count, dtype, ReduceOp::kMax);
      take(out, count);
      ASSERT_TRUE(holds_reduction(output, 0, count, group.world_size(), dtype, ReduceOp::kMax));
      fill_in(count * world);
      group.reduce_scatter(in, out, count, dtype, ReduceOp::kSum);
      take(out, count);
      ASSERT_TRUE(
          holds_reduction(output, rank * count, count, group.world_size(), dtype, ReduceOp::kSum));
      group.all_gather(input.data(), out, count, dtype);
      take(out, count * world);
      for (size_t peer = 0; peer < world; ++peer) {
        ASSERT_TRUE(
            holds_contribution(output, peer * count, 0, count, static_cast<int>(peer), dtype));
      }
      fill_in(count);
      group.broadcast(in, count, dtype, group.world_size() - 1);
      take(in, count);
      ASSERT_TRUE(holds_contribution(output, 0, 0, count, group.world_size() - 1, dtype));
    }
  });
}

TEST_P(CommunicatorConformance, KeepsOrderThroughManySmallAndLargeCollectives) {
  run([](Communicator& group) {
    const int rounds = thin_matrix() ? 60 : 400;
    for (int round = 0; round < rounds; ++round) {
      const size_t count = static_cast<size_t>(1 + (round * 7919) % 9000);
      std::vector<float> data(count, static_cast<float>(round + group.rank()));
      group.all_reduce(data.data(), data.data(), count, DataType::kFloat32, ReduceOp::kMax);
      const auto expected = static_cast<float>(round + group.world_size() - 1);
      ASSERT_EQ(data.front(), expected);
      ASSERT_EQ(data.back(), expected);
      if (round % 3 == 0) group.barrier();
      int64_t word = group.rank() == round % group.world_size() ? round : -1;
      group.broadcast(&word, 1, DataType::kInt64, round % group.world_size());
      ASSERT_EQ(word, round);
    }
  });
}

std::vector<Case> cases() {
  const RunnerName threads{"Threads", as_threads};
  const RunnerName processes{"Processes", as_processes};
  std::vector<Case> list;
  for (const int world : {1, 2, 3, 4}) {
    const std::string ranks = std::to_string(world) + "Ranks";
    list.push_back({threads, world, Config(), "Threads" + ranks});
    if (world > 1) list.push_back({threads, world, small_slots(), "ThreadsSmallSlots" + ranks});
    if (world > 1) list.push_back({processes, world, Config(), "Processes" + ranks});
  }
  return list;
}

INSTANTIATE_TEST_SUITE_P(SharedMemory, CommunicatorConformance, ::testing::ValuesIn(cases()),
                         [](const auto& instance) { return instance.param.name; });

}  // namespace
}  // namespace farandole::test
