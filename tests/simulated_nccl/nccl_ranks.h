// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <deque>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "support/forked_child.h"
#include "support/ranks.h"
#include "support/simulated_device/no_races.h"
#include "support/simulated_device/stream.h"
#include "support/simulated_nccl/library.h"

namespace farandole::sim {

/// A test of the simulated NCCL under a schedule; it fails if there are reports at the end.
class NcclTest : public NoRaces {
 protected:
  void TearDown() override {
    NoRaces::TearDown();
    EXPECT_STREQ(nccl().SimulatedTakeReports(), "");
  }
};

/// One rank of a test, on the device of its number.
struct NcclRank {
  int rank;
  int world_size;
  ncclUniqueId id;
  Stream& stream;

  cudaStream_t handle() const { return reinterpret_cast<cudaStream_t>(&stream); }

  /// A communicator of all ranks, of which non-blocking ones are waited for.
  ncclComm_t join(bool blocking = true) const;
  /// Polls until no call is in progress; returns the state then.
  static ncclResult_t settle(ncclComm_t comm);
};

inline ncclResult_t NcclRank::settle(ncclComm_t comm) {
  ncclResult_t state = ncclInProgress;
  while (state == ncclInProgress) {
    if (nccl().CommGetAsyncError(comm, &state) != ncclSuccess) return ncclInternalError;
    if (state == ncclInProgress) std::this_thread::sleep_for(std::chrono::microseconds(100));
  }
  return state;
}

inline ncclComm_t NcclRank::join(bool blocking) const {
  ncclConfig_t config = NCCL_CONFIG_INITIALIZER;
  config.blocking = blocking ? 1 : 0;
  ncclComm_t comm = nullptr;
  const ncclResult_t result = nccl().CommInitRankConfig(&comm, world_size, id, rank, &config);
  EXPECT_EQ(result, blocking ? ncclSuccess : ncclInProgress) << nccl().GetLastError(nullptr);
  EXPECT_EQ(settle(comm), ncclSuccess);
  return comm;
}

using NcclBody = std::function<void(const NcclRank&)>;

inline ncclUniqueId new_unique_id() {
  ncclUniqueId id;
  EXPECT_EQ(nccl().GetUniqueId(&id), ncclSuccess);
  return id;
}

inline void run_rank(int rank, int world_size, const ncclUniqueId& id, const NcclBody& body) {
  set_current_device(rank);
  body({rank, world_size, id, new_stream(rank)});
}

/// Runs `body` on ranks that are threads. Ends the program if they hang.
inline void on_threads(int world_size, const NcclBody& body) {
  const ncclUniqueId id = new_unique_id();
  std::atomic<int> running{world_size};
  std::vector<std::thread> threads;
  for (int rank = 0; rank < world_size; ++rank) {
    threads.emplace_back([&, rank] {
      run_rank(rank, world_size, id, body);
      --running;
    });
  }
  const auto deadline = std::chrono::steady_clock::now() + test::rank_deadline();
  while (running.load() > 0) {
    std::this_thread::sleep_for(std::chrono::microseconds(200));
    if (std::chrono::steady_clock::now() < deadline) continue;
    std::fprintf(stderr, "%d ranks hang; reports: %s\n", running.load(),
                 nccl().SimulatedTakeReports());
    std::abort();
  }
  for (std::thread& each : threads) each.join();
}

/// Runs `body` on ranks that are forked processes; `victim` is to be killed. Before any device is
/// used.
inline void on_processes(int world_size, const NcclBody& body, int victim = -1) {
  const ncclUniqueId id = new_unique_id();
  std::deque<test::ForkedChild> children;
  for (int rank = 0; rank < world_size; ++rank) {
    children.emplace_back([&, rank] {
      run_rank(rank, world_size, id, body);
      synchronize_device(rank);
      EXPECT_THAT(race_detector().take_reports(), ::testing::IsEmpty());
      EXPECT_STREQ(nccl().SimulatedTakeReports(), "");
      return !::testing::Test::HasFailure();
    });
  }
  for (int rank = 0; rank < world_size; ++rank) {
    EXPECT_EQ(children[static_cast<size_t>(rank)].succeeded(), rank != victim) << "rank " << rank;
  }
}

}  // namespace farandole::sim
