// SPDX-License-Identifier: Apache-2.0
// Each failure that a test may inject happens as it is meant to, and only there.
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <chrono>
#include <thread>

#include "simulated_nccl/device_buffer.h"
#include "simulated_nccl/nccl_ranks.h"
#include "simulated_nccl/values.h"

namespace farandole::sim {
namespace {

using ::testing::HasSubstr;

void inject(const char* function, int rank, int calls_before, ncclSimulatedFault fault,
            ncclResult_t result = ncclSuccess) {
  const ncclSimulatedInjection injection{function, rank, calls_before, fault, result};
  nccl().SimulatedInject(&injection);
}

ncclResult_t all_reduce(const NcclRank& rank, ncclComm_t comm, const DeviceBuffer& data) {
  const ncclResult_t result =
      nccl().AllReduce(data.data(), data.data(), 1, ncclFloat32, ncclSum, comm, rank.handle());
  return result == ncclInProgress ? NcclRank::settle(comm) : result;
}

bool is_hanging(const NcclRank& rank) {
  rank.stream.query();
  std::this_thread::sleep_for(std::chrono::milliseconds(20));
  return !rank.stream.query();
}

class Injections : public NcclTest {};
INSTANTIATE_TEST_SUITE_P(, Injections, kEverySchedule, ::testing::PrintToStringParamName());

TEST_P(Injections, ReturnAnErrorFromAChosenCall) {
  inject("ncclAllReduce", 1, 2, ncclSimulatedReturn, ncclSystemError);
  on_threads(2, [](const NcclRank& rank) {
    const ncclComm_t comm = rank.join();
    DeviceBuffer data(rank.stream, encode({1}, ncclFloat32));
    EXPECT_EQ(all_reduce(rank, comm, data), ncclSuccess);
    EXPECT_EQ(all_reduce(rank, comm, data), ncclSuccess);
    EXPECT_EQ(data.read(), encode({4}, ncclFloat32));
    EXPECT_EQ(all_reduce(rank, comm, data), rank.rank == 1 ? ncclSystemError : ncclSuccess);
    if (rank.rank == 1) {
      EXPECT_THAT(nccl().GetLastError(nullptr), HasSubstr("rank 1 of 2 has an injected error"));
    }
    EXPECT_EQ(nccl().CommAbort(comm), ncclSuccess);
  });
}

TEST_P(Injections, ReturnAnErrorFromAnyFunction) {
  inject("ncclGetUniqueId", -1, 0, ncclSimulatedReturn, ncclInternalError);
  ncclUniqueId id;
  EXPECT_EQ(nccl().GetUniqueId(&id), ncclInternalError);
  EXPECT_EQ(nccl().GetUniqueId(&id), ncclSuccess);
  inject("ncclMemAlloc", -1, 0, ncclSimulatedReturn, ncclUnhandledCudaError);
  void* data = nullptr;
  EXPECT_EQ(nccl().MemAlloc(&data, 8), ncclUnhandledCudaError);
  inject("ncclCommInitRankConfig", 0, 0, ncclSimulatedReturn, ncclSystemError);
  ncclComm_t comm = nullptr;
  EXPECT_EQ(nccl().CommInitRankConfig(&comm, 1, id, 0, nullptr), ncclSystemError);
  EXPECT_EQ(nccl().CommInitRankConfig(&comm, 1, id, 0, nullptr), ncclSuccess);
  inject("ncclCommDestroy", 0, 0, ncclSimulatedReturn, ncclSystemError);
  EXPECT_EQ(nccl().CommDestroy(comm), ncclSystemError);
  EXPECT_EQ(nccl().CommDestroy(comm), ncclSuccess);
}

TEST_P(Injections, FailAGroupOfWhichACallFails) {
  inject("ncclSend", 0, 0, ncclSimulatedReturn, ncclSystemError);
  on_threads(1, [](const NcclRank& rank) {
    const ncclComm_t comm = rank.join();
    DeviceBuffer data(rank.stream, encode({1, 2}, ncclFloat32));
    nccl().GroupStart();
    EXPECT_EQ(nccl().Send(data.data(), 1, ncclFloat32, 0, comm, rank.handle()), ncclSystemError);
    EXPECT_EQ(nccl().Recv(data.data() + 4, 1, ncclFloat32, 0, comm, rank.handle()), ncclSuccess);
    EXPECT_EQ(nccl().GroupEnd(), ncclSystemError);
    inject("ncclGroupEnd", 0, 0, ncclSimulatedReturn, ncclInternalError);
    nccl().GroupStart();
    EXPECT_EQ(nccl().Send(data.data(), 1, ncclFloat32, 0, comm, rank.handle()), ncclSuccess);
    EXPECT_EQ(nccl().GroupEnd(), ncclInternalError);
    EXPECT_EQ(data.read(), encode({1, 2}, ncclFloat32));
    EXPECT_EQ(nccl().CommDestroy(comm), ncclSuccess);
  });
}

TEST_P(Injections, KeepARankFromComing) {
  inject("ncclCommInitRankConfig", 1, 0, ncclSimulatedAbsence);
  on_threads(2, [](const NcclRank& rank) {
    ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
    config.blocking = 0;
    ncclComm_t comm = nullptr;
    EXPECT_EQ(nccl().CommInitRankConfig(&comm, 2, rank.id, rank.rank, &config), ncclInProgress);
    for (int i = 0; i < 20; ++i) {
      ncclResult_t state = ncclSuccess;
      EXPECT_EQ(nccl().CommGetAsyncError(comm, &state), ncclSuccess);
      EXPECT_EQ(state, ncclInProgress);
      std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    EXPECT_EQ(nccl().CommAbort(comm), ncclSuccess);
  });
}

TEST_P(Injections, HangUntilAbort) {
  inject("ncclAllReduce", 0, 1, ncclSimulatedHang);
  on_threads(2, [](const NcclRank& rank) {
    const ncclComm_t comm = rank.join();
    DeviceBuffer data(rank.stream, encode({1}, ncclFloat32));
    EXPECT_EQ(all_reduce(rank, comm, data), ncclSuccess);
    EXPECT_EQ(data.read(), encode({2}, ncclFloat32));
    EXPECT_EQ(all_reduce(rank, comm, data), ncclSuccess);
    EXPECT_TRUE(is_hanging(rank));
    ncclResult_t state = ncclSystemError;
    EXPECT_EQ(nccl().CommGetAsyncError(comm, &state), ncclSuccess);
    EXPECT_EQ(state, ncclSuccess);
    EXPECT_EQ(nccl().CommAbort(comm), ncclSuccess);
    rank.stream.synchronize();
  });
}

TEST_P(Injections, RaiseAnAsynchronousError) {
  inject("ncclAllReduce", 0, 0, ncclSimulatedAsyncError, ncclRemoteError);
  on_threads(2, [](const NcclRank& rank) {
    const ncclComm_t comm = rank.join();
    DeviceBuffer data(rank.stream, encode({1}, ncclFloat32));
    EXPECT_EQ(all_reduce(rank, comm, data), ncclSuccess);
    EXPECT_TRUE(is_hanging(rank));
    ncclResult_t state = ncclSuccess;
    EXPECT_EQ(nccl().CommGetAsyncError(comm, &state), ncclSuccess);
    EXPECT_EQ(state, rank.rank == 0 ? ncclRemoteError : ncclSuccess);
    if (rank.rank == 0) {
      EXPECT_EQ(all_reduce(rank, comm, data), ncclRemoteError);
      EXPECT_THAT(nccl().GetLastError(comm), HasSubstr("injected error in ncclAllReduce"));
    }
    EXPECT_EQ(nccl().CommAbort(comm), ncclSuccess);
    rank.stream.synchronize();
  });
}

TEST_P(Injections, KillAProcess) {
  inject("ncclAllReduce", 2, 0, ncclSimulatedDeath);
  on_processes(
      3,
      [](const NcclRank& rank) {
        const ncclComm_t comm = rank.join(/*blocking=*/false);
        DeviceBuffer data(rank.stream, encode({1}, ncclFloat32));
        EXPECT_EQ(all_reduce(rank, comm, data), ncclSuccess);
        EXPECT_TRUE(is_hanging(rank));
        int dead = 2;
        ncclComm_t rest = nullptr;
        nccl().CommShrink(comm, &dead, 1, &rest, nullptr, NCCL_SHRINK_ABORT);
        EXPECT_EQ(NcclRank::settle(comm), ncclSuccess);
        EXPECT_EQ(nccl().CommAbort(comm), ncclSuccess);
        rank.stream.synchronize();
        DeviceBuffer again(rank.stream, encode({1}, ncclFloat32));
        EXPECT_EQ(all_reduce(rank, rest, again), ncclSuccess);
        EXPECT_EQ(again.read(), encode({2}, ncclFloat32));
        EXPECT_EQ(nccl().CommDestroy(rest), ncclSuccess);
      },
      /*victim=*/2);
}

enum class State { kIdle, kLaunched, kNotPolled, kSplitting, kFinalizing, kFinalized };

/// Brings a non-blocking communicator into a state that is reached, or not, without the other rank.
void reach(State state, const NcclRank& rank, ncclComm_t comm, const DeviceBuffer& data,
           ncclComm_t& part) {
  if (state == State::kLaunched) {
    EXPECT_EQ(all_reduce(rank, comm, data), ncclSuccess);
  } else if (state == State::kNotPolled) {
    nccl().AllReduce(data.data(), data.data(), 1, ncclFloat32, ncclSum, comm, rank.handle());
  } else if (state == State::kSplitting) {
    nccl().CommSplit(comm, 0, 0, &part, nullptr);
  } else if (state != State::kIdle) {
    nccl().CommFinalize(comm);
  }
  if (state == State::kFinalized) {
    EXPECT_EQ(NcclRank::settle(comm), ncclSuccess);
  }
}

TEST_P(Injections, NeedNoStateToAbort) {
  for (State state : {State::kIdle, State::kLaunched, State::kNotPolled, State::kSplitting,
                      State::kFinalizing, State::kFinalized}) {
    on_threads(2, [=](const NcclRank& rank) {
      const ncclComm_t comm = rank.join(/*blocking=*/false);
      DeviceBuffer data(rank.stream, encode({1}, ncclFloat32));
      ncclComm_t part = nullptr;
      if (rank.rank == 0 || state == State::kFinalized) reach(state, rank, comm, data, part);
      EXPECT_EQ(nccl().CommAbort(comm), ncclSuccess);
      rank.stream.synchronize();
    });
  }
}

}  // namespace
}  // namespace farandole::sim
