// SPDX-License-Identifier: Apache-2.0
// How communicators are made of others, grouped and ended.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <cstring>
#include <thread>

#include "simulated_nccl/device_buffer.h"
#include "simulated_nccl/nccl_ranks.h"
#include "simulated_nccl/values.h"

namespace farandole::sim {
namespace {

class Communicators : public NcclTest {
 protected:
  /// Sums rank numbers of `comm`.
  static double sum_of_ranks(const NcclRank& me, ncclComm_t comm) {
    int rank = -1;
    EXPECT_EQ(nccl().CommUserRank(comm, &rank), ncclSuccess);
    DeviceBuffer data(me.stream, encode({rank + 1.0}, ncclFloat64));
    const ncclResult_t result =
        nccl().AllReduce(data.data(), data.data(), 1, ncclFloat64, ncclSum, comm, me.handle());
    EXPECT_THAT(result, ::testing::AnyOf(ncclSuccess, ncclInProgress));
    EXPECT_EQ(NcclRank::settle(comm), ncclSuccess);
    double sum = 0;
    std::memcpy(&sum, data.read().data(), sizeof sum);
    return sum;
  }

  static void end(ncclComm_t comm) {
    EXPECT_EQ(nccl().CommDestroy(comm), ncclSuccess) << nccl().GetLastError(comm);
  }
};
INSTANTIATE_TEST_SUITE_P(, Communicators, kEverySchedule, ::testing::PrintToStringParamName());

TEST_P(Communicators, KnowWhoTheyAre) {
  int version = 0;
  EXPECT_EQ(nccl().GetVersion(&version), ncclSuccess);
  EXPECT_EQ(version, NCCL_VERSION_CODE);
  EXPECT_STREQ(nccl().GetErrorString(ncclInProgress), "NCCL operation in progress");
  on_threads(3, [](const NcclRank& rank) {
    const ncclComm_t comm = rank.join();
    int count = 0;
    int number = -1;
    int device = -1;
    EXPECT_EQ(nccl().CommCount(comm, &count), ncclSuccess);
    EXPECT_EQ(nccl().CommUserRank(comm, &number), ncclSuccess);
    EXPECT_EQ(nccl().CommCuDevice(comm, &device), ncclSuccess);
    EXPECT_EQ(count, 3);
    EXPECT_EQ(number, rank.rank);
    EXPECT_EQ(device, rank.rank);
    end(comm);
  });
}

void split_by_parity(const NcclRank& rank, bool blocking) {
  const ncclComm_t comm = rank.join(blocking);
  ncclComm_t part = nullptr;
  const int color = rank.rank == 3 ? NCCL_SPLIT_NOCOLOR : rank.rank % 2;
  const ncclResult_t result = nccl().CommSplit(comm, color, -rank.rank, &part, nullptr);
  EXPECT_EQ(result, blocking ? ncclSuccess : ncclInProgress);
  if (!blocking) {
    EXPECT_EQ(part, nullptr);
  }
  EXPECT_EQ(NcclRank::settle(comm), ncclSuccess);
  if (rank.rank == 3) {
    EXPECT_EQ(part, nullptr);
  } else {
    int number = -1;
    int count = 0;
    EXPECT_EQ(nccl().CommUserRank(part, &number), ncclSuccess);
    EXPECT_EQ(nccl().CommCount(part, &count), ncclSuccess);
    EXPECT_EQ(number, rank.rank == 0 ? 1 : 0);  // keys turn the order round
    EXPECT_EQ(count, rank.rank == 1 ? 1 : 2);
    EXPECT_EQ(nccl().CommDestroy(part), ncclSuccess);
  }
  EXPECT_EQ(nccl().CommDestroy(comm), ncclSuccess);
}

TEST_P(Communicators, AreSplitOnThreads) {
  for (bool blocking : {true, false}) {
    on_threads(4, [=](const NcclRank& rank) { split_by_parity(rank, blocking); });
  }
}

TEST_P(Communicators, AreSplitOnProcesses) {
  on_processes(4, [](const NcclRank& rank) { split_by_parity(rank, /*blocking=*/false); });
}

void shrink_after_a_hang(const NcclRank& rank, bool blocking) {
  const ncclComm_t comm = rank.join(blocking);
  if (rank.rank == 1) {  // does not take part any more
    EXPECT_EQ(nccl().CommAbort(comm), ncclSuccess);
    return;
  }
  DeviceBuffer data(rank.stream, encode({1}, ncclFloat32));
  nccl().AllReduce(data.data(), data.data(), 1, ncclFloat32, ncclSum, comm, rank.handle());
  EXPECT_EQ(NcclRank::settle(comm), ncclSuccess);
  std::this_thread::sleep_for(std::chrono::milliseconds(5));
  EXPECT_FALSE(rank.stream.query());
  int excluded = 1;
  ncclComm_t rest = nullptr;
  nccl().CommShrink(comm, &excluded, 1, &rest, nullptr, NCCL_SHRINK_ABORT);
  EXPECT_EQ(NcclRank::settle(comm), ncclSuccess) << nccl().GetLastError(comm);
  rank.stream.synchronize();
  EXPECT_EQ(nccl().CommAbort(comm), ncclSuccess);
  DeviceBuffer again(rank.stream, encode({rank.rank + 1.0}, ncclFloat32));
  nccl().AllReduce(again.data(), again.data(), 1, ncclFloat32, ncclSum, rest, rank.handle());
  EXPECT_EQ(NcclRank::settle(rest), ncclSuccess);
  EXPECT_EQ(again.read(), encode({4}, ncclFloat32));
  EXPECT_EQ(nccl().CommDestroy(rest), ncclSuccess);
}

TEST_P(Communicators, AreShrunkAfterAHangOnThreads) {
  for (bool blocking : {true, false}) {
    on_threads(3, [=](const NcclRank& rank) { shrink_after_a_hang(rank, blocking); });
  }
}

TEST_P(Communicators, AreShrunkAfterAHangOnProcesses) {
  on_processes(3, [](const NcclRank& rank) { shrink_after_a_hang(rank, /*blocking=*/false); });
}

TEST_P(Communicators, FinalizeWhenAllRanksDo) {
  std::atomic<bool> late_one_finalizes{false};
  on_threads(2, [&](const NcclRank& rank) {
    const ncclComm_t comm = rank.join(/*blocking=*/false);
    EXPECT_EQ(sum_of_ranks(rank, comm), 3);
    if (rank.rank == 1) {
      std::this_thread::sleep_for(std::chrono::milliseconds(5));
      late_one_finalizes = true;
    }
    EXPECT_EQ(nccl().CommFinalize(comm), ncclInProgress);
    EXPECT_EQ(NcclRank::settle(comm), ncclSuccess);
    EXPECT_TRUE(late_one_finalizes);
    end(comm);
  });
}

TEST_P(Communicators, LaunchWhenTheyArePolledTheSecondTime) {
  const NcclRank alone{0, 1, new_unique_id(), stream(0, 0)};
  const ncclComm_t comm = alone.join(/*blocking=*/false);
  DeviceBuffer data(alone.stream, encode({1}, ncclFloat32));
  DeviceBuffer sum(alone.stream, encode({0}, ncclFloat32));
  EXPECT_EQ(
      nccl().AllReduce(data.data(), sum.data(), 1, ncclFloat32, ncclSum, comm, alone.handle()),
      ncclInProgress);
  ncclResult_t state = ncclSuccess;
  EXPECT_EQ(nccl().CommGetAsyncError(comm, &state), ncclSuccess);
  EXPECT_EQ(state, ncclInProgress);
  EXPECT_EQ(sum.read(), encode({0}, ncclFloat32));
  EXPECT_EQ(nccl().CommGetAsyncError(comm, &state), ncclSuccess);
  EXPECT_EQ(state, ncclSuccess);
  EXPECT_EQ(sum.read(), encode({1}, ncclFloat32));
  end(comm);
}

TEST_P(Communicators, WaitForALateRank) {
  on_threads(2, [](const NcclRank& rank) {
    if (rank.rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(20));
    const ncclComm_t comm = rank.join(/*blocking=*/false);
    EXPECT_EQ(sum_of_ranks(rank, comm), 3);
    EXPECT_EQ(nccl().CommAbort(comm), ncclSuccess);
  });
}

TEST_P(Communicators, AreAbortedWhileARankIsMissing) {
  const NcclRank alone{0, 2, new_unique_id(), new_stream(0)};
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = 0;
  ncclComm_t comm = nullptr;
  EXPECT_EQ(nccl().CommInitRankConfig(&comm, 2, alone.id, 0, &config), ncclInProgress);
  const auto timeout = std::chrono::steady_clock::now() + std::chrono::milliseconds(20);
  ncclResult_t state = ncclSuccess;
  while (std::chrono::steady_clock::now() < timeout) {
    EXPECT_EQ(nccl().CommGetAsyncError(comm, &state), ncclSuccess);
    EXPECT_EQ(state, ncclInProgress);
  }
  EXPECT_EQ(nccl().CommAbort(comm), ncclSuccess);
}

TEST_P(Communicators, RunGroupsOverSeveralStreamsAndCommunicators) {
  on_threads(2, [](const NcclRank& rank) {
    const ncclComm_t comm = rank.join();
    ncclComm_t other = nullptr;
    EXPECT_EQ(nccl().CommSplit(comm, 0, rank.rank, &other, nullptr), ncclSuccess);
    Stream& side = new_stream(rank.rank);
    DeviceBuffer first(rank.stream, encode({1}, ncclInt32));
    DeviceBuffer second(side, encode({2}, ncclInt32));
    DeviceBuffer third(rank.stream, encode({3}, ncclInt32));
    const auto sum = [&](const DeviceBuffer& data, ncclComm_t with, Stream& on) {
      EXPECT_EQ(nccl().AllReduce(data.data(), data.data(), 1, ncclInt32, ncclSum, with,
                                 reinterpret_cast<cudaStream_t>(&on)),
                ncclSuccess);
    };
    nccl().GroupStart();
    nccl().GroupStart();
    sum(first, comm, rank.stream);
    sum(second, comm, side);
    EXPECT_EQ(nccl().GroupEnd(), ncclSuccess);
    sum(third, other, rank.stream);
    EXPECT_EQ(nccl().GroupEnd(), ncclSuccess);
    EXPECT_EQ(first.read(), encode({2}, ncclInt32));
    EXPECT_EQ(second.read(), encode({4}, ncclInt32));
    EXPECT_EQ(third.read(), encode({6}, ncclInt32));
    end(other);
    end(comm);
  });
}

TEST_P(Communicators, RunInTheOrderOfLaunchesOnOtherStreams) {
  on_threads(2, [](const NcclRank& rank) {
    const ncclComm_t comm = rank.join();
    Stream& side = new_stream(rank.rank);
    DeviceBuffer first(rank.stream, encode({1}, ncclInt32));
    DeviceBuffer second(side, encode({2}, ncclInt32));
    nccl().AllReduce(first.data(), first.data(), 1, ncclInt32, ncclSum, comm, rank.handle());
    nccl().AllReduce(second.data(), second.data(), 1, ncclInt32, ncclProd, comm,
                     reinterpret_cast<cudaStream_t>(&side));
    EXPECT_EQ(second.read(), encode({4}, ncclInt32));  // alone, under the lazy schedule
    EXPECT_EQ(first.read(), encode({2}, ncclInt32));
    end(comm);
  });
}

/// Each rank in turn sends what it has received: what a kernel waits for may be in the next one.
TEST_P(Communicators, PassMessagesAround) {
  for (int world_size : {2, 3}) {
    on_threads(world_size, [](const NcclRank& rank) {
      constexpr int kRounds = 50;
      const ncclComm_t comm = rank.join();
      const int next = (rank.rank + 1) % rank.world_size;
      const int last = (rank.rank + rank.world_size - 1) % rank.world_size;
      DeviceBuffer data(rank.stream, encode({5.0 + rank.rank}, ncclInt64));
      const auto send = [&] {
        EXPECT_EQ(nccl().Send(data.data(), 1, ncclInt64, next, comm, rank.handle()), ncclSuccess);
      };
      for (int round = 0; round < kRounds; ++round) {
        if (rank.rank == 0) send();
        EXPECT_EQ(nccl().Recv(data.data(), 1, ncclInt64, last, comm, rank.handle()), ncclSuccess);
        if (rank.rank != 0) send();
      }
      EXPECT_EQ(data.read(), encode({5}, ncclInt64));
      end(comm);
    });
  }
}

TEST_P(Communicators, UseMemoryOfNccl) {
  on_threads(2, [](const NcclRank& rank) {
    const ncclComm_t comm = rank.join(/*blocking=*/false);
    void* data = nullptr;
    EXPECT_EQ(nccl().MemAlloc(&data, 4096), ncclSuccess);
    void* registration = nullptr;
    EXPECT_EQ(nccl().CommRegister(comm, data, 4096, &registration), ncclSuccess);
    ncclWindow_t window = nullptr;
    EXPECT_EQ(nccl().CommWindowRegister(comm, data, 4096, &window, NCCL_WIN_COLL_SYMMETRIC),
              ncclSuccess);  // and it is in progress
    EXPECT_EQ(NcclRank::settle(comm), ncclSuccess);
    EXPECT_NE(window, nullptr);
    nccl().Broadcast(data, data, 1024, ncclFloat32, 0, comm, rank.handle());
    EXPECT_EQ(NcclRank::settle(comm), ncclSuccess);
    rank.stream.synchronize();
    EXPECT_EQ(nccl().CommWindowDeregister(comm, window), ncclSuccess);
    EXPECT_EQ(nccl().CommDeregister(comm, registration), ncclSuccess);
    EXPECT_EQ(nccl().CommRegister(comm, data, 4096, &registration), ncclSuccess);
    end(comm);  // and what is registered with it
    EXPECT_EQ(nccl().MemFree(data), ncclSuccess);
  });
}

}  // namespace
}  // namespace farandole::sim
