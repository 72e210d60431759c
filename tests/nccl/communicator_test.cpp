// SPDX-License-Identifier: Apache-2.0
// What a communicator on device memory has beyond the operations of the conformance suite.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>
#include <vector>

#include "nccl/device_ranks.h"
#include "simulated_nccl/device_buffer.h"
#include "support/raised.h"

namespace farandole::test {
namespace {

using comm::DataType;
using comm::ReduceOp;
using ::testing::Each;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

std::vector<char> bytes_of_floats(const std::vector<float>& values) {
  std::vector<char> bytes(values.size() * sizeof(float));
  std::memcpy(bytes.data(), values.data(), bytes.size());
  return bytes;
}

std::vector<float> floats_in(const sim::DeviceBuffer& buffer) {
  const std::vector<char> bytes = buffer.read();
  std::vector<float> values(bytes.size() / sizeof(float));
  std::memcpy(values.data(), bytes.data(), bytes.size());
  return values;
}

/// The sum of one float of each rank of `group`, `mine` of this one.
float sum_over(comm::Communicator& group, const DeviceRank& rank, float mine) {
  const sim::DeviceBuffer data(rank.stream, bytes_of_floats({mine}));
  group.all_reduce(data.data(), data.data(), 1, DataType::kFloat32, ReduceOp::kSum, rank.options());
  return floats_in(data).front();
}

class NcclCommunicator : public NcclCommunicatorTest {};
INSTANTIATE_TEST_SUITE_P(, NcclCommunicator, sim::kEverySchedule,
                         ::testing::PrintToStringParamName());

TEST_P(NcclCommunicator, MakesNoHostWaitForDevices) {
  run_device_ranks(2, [](DeviceRank& rank) {
    const sim::DeviceBuffer data(rank.stream, bytes_of_floats({1, 2}));
    rank.group.barrier(rank.options());
    rank.group.control()->barrier();
    const uint64_t before = sim::host_waits();
    for (int step = 0; step < 20; ++step) {
      rank.group.all_reduce(data.data(), data.data(), 2, DataType::kFloat32, ReduceOp::kMax,
                            rank.options());
    }
    rank.group.control()->barrier();  // both have counted
    EXPECT_EQ(sim::host_waits(), before);
    rank.group.control()->barrier();
    EXPECT_THAT(floats_in(data), ElementsAre(1, 2));
  });
}

TEST_P(NcclCommunicator, OrdersWhatIsEnqueuedBehindABarrier) {
  run_device_ranks(3, [](DeviceRank& rank) {
    static std::atomic<int> arrived{0};
    if (rank.group.rank() == 0) arrived = 0;
    rank.group.control()->barrier();
    rank.stream.launch("arrive", {}, [] { ++arrived; });
    rank.group.barrier(rank.options());
    rank.stream.launch("look", {}, [] { EXPECT_EQ(arrived.load(), 3); });
    rank.stream.synchronize();
    rank.group.control()->barrier();
  });
}

TEST_P(NcclCommunicator, MultipliesBeforeItSums) {
  run_device_ranks(2, [](DeviceRank& rank) {
    for (const double factor : {0.5, 0.25, 0.5}) {
      const float own = rank.group.rank() == 0 ? 8.0F : 24.0F;
      const sim::DeviceBuffer data(rank.stream, bytes_of_floats({own}));
      comm::CollectiveOptions options = rank.options();
      options.factor = factor;
      rank.group.all_reduce(data.data(), data.data(), 1, DataType::kFloat32, ReduceOp::kSum,
                            options);
      EXPECT_THAT(floats_in(data), ElementsAre(static_cast<float>(32 * factor)));
      // bfloat16, of which the upper halves of these floats are elements.
      const sim::DeviceBuffer halves(rank.stream, bytes_of_floats({own}));
      rank.group.reduce_scatter(halves.data(), halves.data() + 2 * rank.group.rank(), 1,
                                DataType::kBFloat16, ReduceOp::kSum, options);
      const float result = floats_in(halves).front();
      EXPECT_EQ(result, rank.group.rank() == 0 ? own : static_cast<float>(32 * factor));
      EXPECT_THAT(raised<InvalidArgument>([&] {
                    rank.group.all_reduce(data.data(), data.data(), 1, DataType::kFloat32,
                                          ReduceOp::kMax, options);
                  }),
                  HasSubstr("[factor-without-sum]"));
      EXPECT_THAT(raised<InvalidArgument>([&] {
                    rank.group.all_reduce(data.data(), data.data(), 1, DataType::kInt32,
                                          ReduceOp::kSum, options);
                  }),
                  HasSubstr("[factor-without-sum]"));
    }
  });
}

TEST_P(NcclCommunicator, ForgetsFactorsThatChangeFromStepToStep) {
  run_device_ranks(1, [](DeviceRank& rank) {
    const sim::DeviceBuffer data(rank.stream, bytes_of_floats({1}));
    comm::CollectiveOptions options = rank.options();
    for (int step = 0; step < 200; ++step) {
      options.factor = 2 + step;
      rank.group.all_reduce(data.data(), data.data(), 1, DataType::kFloat32, ReduceOp::kSum,
                            options);
    }
    rank.stream.synchronize();
  });
}

TEST_P(NcclCommunicator, MakesOneOperationOfAGroup) {
  run_device_ranks(3, [](DeviceRank& rank) {
    const int own = rank.group.rank();
    const sim::DeviceBuffer sent(rank.stream, bytes_of_floats({static_cast<float>(own)}));
    const sim::DeviceBuffer received(rank.stream, size_t{3} * sizeof(float));
    const sim::DeviceBuffer summed(rank.stream, bytes_of_floats({1}));
    rank.group.begin_group();
    for (int peer = 0; peer < 3; ++peer) {  // all send before anyone receives
      rank.group.send(sent.data(), sizeof(float), peer, 0, rank.options());
    }
    for (int peer = 0; peer < 3; ++peer) {
      rank.group.receive(received.data() + peer * sizeof(float), sizeof(float), peer, 0,
                         rank.options());
    }
    rank.group.begin_group();
    rank.group.all_reduce(summed.data(), summed.data(), 1, DataType::kFloat32, ReduceOp::kSum,
                          rank.options());
    rank.group.end_group();
    rank.group.end_group();
    EXPECT_THAT(floats_in(received), ElementsAre(0, 1, 2));
    EXPECT_THAT(floats_in(summed), ElementsAre(3));
  });
}

TEST_P(NcclCommunicator, RefusesAReceiveFromAnyRank) {
  run_device_ranks(2, [](DeviceRank& rank) {
    const sim::DeviceBuffer data(rank.stream, bytes_of_floats({1}));
    EXPECT_THAT(raised<NotSupported>([&] {
                  rank.group.receive(data.data(), 4, comm::Communicator::kAnySource, 0,
                                     rank.options());
                }),
                HasSubstr("[nccl-any-source]"));
    raised<InvalidArgument>([&] { rank.group.send(data.data(), 4, 2, 0, rank.options()); });
    raised<InvalidArgument>([&] { rank.group.send(nullptr, 4, 1, 0, rank.options()); });
    EXPECT_EQ(sum_over(rank.group, rank, 1), 2);
  });
}

TEST_P(NcclCommunicator, AllocatesMemoryForCollectives) {
  run_device_ranks(2, [](DeviceRank& rank) {
    const auto memory = rank.group.allocate(1000);
    ASSERT_EQ(memory->bytes(), 1000U);
    EXPECT_EQ(sim::device_of(memory->data()), rank.group.rank());
    auto* const data = static_cast<float*>(memory->data());
    rank.stream.launch("write", {{data, 1000, true}},
                       [data] { std::fill_n(sim::bytes_of(data), 250, 1.5F); });
    rank.group.all_reduce(data, data, 250, DataType::kFloat32, ReduceOp::kSum, rank.options());
    std::vector<float> result(250);
    rank.stream.launch("read", {{data, 1000, false}},
                       [data, &result] { std::copy_n(sim::bytes_of(data), 250, result.begin()); });
    rank.stream.synchronize();
    EXPECT_THAT(result, Each(3));
  });
}

TEST_P(NcclCommunicator, MayLeaveMemoryToOutliveIt) {
  std::vector<std::shared_ptr<comm::DeviceMemory>> kept(2);
  run_device_ranks(2, [&](DeviceRank& rank) {
    kept[static_cast<size_t>(rank.group.rank())] = rank.group.allocate(64);
  });
}

TEST_P(NcclCommunicator, TellsAllRanksThatThereIsNoMemory) {
  inject("ncclMemAlloc", 1, 0, ncclSimulatedReturn, ncclUnhandledCudaError);
  run_device_ranks(2, [](DeviceRank& rank) {
    EXPECT_THAT(raised<SystemError>([&] { rank.group.allocate(64); }),
                AllOf(HasSubstr("[device-memory]"), HasSubstr("rank 1")));
    EXPECT_THAT(
        raised<MismatchError>([&] { rank.group.allocate(rank.group.rank() == 0 ? 64 : 32); }),
        HasSubstr("[device-memory-sizes]"));
    EXPECT_EQ(rank.group.allocate(64)->bytes(), 64U);
    EXPECT_EQ(sum_over(rank.group, rank, 1), 2);
  });
}

/// A communicator on host memory of `ranks` of `control`.
std::unique_ptr<comm::Communicator> host_group(comm::Store& store, const std::vector<int>& ranks,
                                               int rank, const std::string& name) {
  comm::CommunicatorOptions options;
  options.name = name;
  options.world_size = static_cast<int>(ranks.size());
  options.rank = static_cast<int>(std::find(ranks.begin(), ranks.end(), rank) - ranks.begin());
  return comm::make_communicator("shm", store, options);
}

TEST_P(NcclCommunicator, Splits) {
  comm::InProcessStore stores[2];
  run_device_ranks(4, [&](DeviceRank& rank) {
    const int own = rank.group.rank();
    const std::vector<int> parts[2] = {{2, 0}, {1}};
    const size_t part = own == 3 ? 2 : static_cast<size_t>(own % 2);
    std::shared_ptr<comm::Communicator> control;
    std::vector<int> ranks;
    if (part < 2) {
      ranks = parts[part];
      control = host_group(stores[part], ranks, own, "part" + std::to_string(part));
    }
    const auto made = rank.group.split(ranks, control);
    ASSERT_EQ(made == nullptr, own == 3);
    if (made) {
      EXPECT_EQ(made->world_size(), static_cast<int>(ranks.size()));
      EXPECT_EQ(made->rank(), own == 0 ? 1 : 0);
      EXPECT_EQ(sum_over(*made, rank, static_cast<float>(own)), part == 0 ? 2 : 1);
    }
    EXPECT_EQ(sum_over(rank.group, rank, 1), 4);
    EXPECT_THAT(raised<InvalidArgument>([&] {
                  rank.group.split({0, 0}, control);
                }),
                HasSubstr("[split-ranks]"));
  });
}

TEST_P(NcclCommunicator, ShrinksWhileItIsWhole) {
  comm::InProcessStore store;
  run_device_ranks(3, [&](DeviceRank& rank) {
    EXPECT_EQ(sum_over(rank.group, rank, 1), 3);
    if (rank.group.rank() == 1) return;
    const auto rest = rank.group.shrink({1}, store);
    EXPECT_EQ(rest->world_size(), 2);
    EXPECT_EQ(sum_over(*rest, rank, static_cast<float>(rank.group.rank())), 2);
  });
}

TEST_P(NcclCommunicator, IsWatchedByAnotherThread) {
  run_device_ranks(2, [](DeviceRank& rank) {
    std::atomic<bool> ends{false};
    std::thread watchdog([&] {
      while (!ends) {
        rank.group.check_alive();
        std::this_thread::sleep_for(std::chrono::microseconds(50));
      }
    });
    const sim::DeviceBuffer data(rank.stream, bytes_of_floats({1}));
    for (int step = 0; step < 100; ++step) {
      rank.group.all_reduce(data.data(), data.data(), 1, DataType::kFloat32, ReduceOp::kMax,
                            rank.options());
    }
    rank.stream.synchronize();
    ends = true;
    watchdog.join();
  });
}

TEST(NcclCommunicatorAlone, FindsItsOwnHostCommunicator) {
  comm::InProcessStore store;
  comm::CommunicatorOptions options;
  options.config.nccl_library = FARANDOLE_SIMULATED_NCCL;
  const auto made = comm::make_communicator("nccl", store, options);
  EXPECT_EQ(made->memory_kind(), comm::MemoryKind::kDevice);
  EXPECT_EQ(made->shared_memory(), nullptr);
  EXPECT_EQ(comm::backend_for(comm::MemoryKind::kDevice), "nccl");
}

}  // namespace
}  // namespace farandole::test
