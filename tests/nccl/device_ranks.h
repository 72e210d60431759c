// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "farandole/comm/backends.h"
#include "farandole/comm/device_communicator.h"
#include "support/ranks.h"
#include "support/simulated_device/no_races.h"
#include "support/simulated_nccl/library.h"

namespace farandole::test {

/// A test of NcclCommunicator on the simulated NCCL, under a schedule; it fails if there are
/// reports of races or of misuse at the end.
class NcclCommunicatorTest : public sim::NoRaces {
 protected:
  void TearDown() override {
    NoRaces::TearDown();
    // Forked ranks take copies; the one of this process would meet the next test.
    sim::nccl().SimulatedDropInjections();
    EXPECT_STREQ(sim::nccl().SimulatedTakeReports(), "");
  }

  static void inject(const char* function, int rank, int calls_before, ncclSimulatedFault fault,
                     ncclResult_t result = ncclSuccess) {
    const ncclSimulatedInjection injection{function, rank, calls_before, fault, result};
    sim::nccl().SimulatedInject(&injection);
  }
};

/// One rank of a test, on the device of its number.
struct DeviceRank {
  comm::DeviceCommunicator& group;
  sim::Stream& stream;

  /// Of calls on the stream.
  comm::CollectiveOptions options(std::chrono::milliseconds timeout = {}) const {
    comm::CollectiveOptions made;
    made.stream = &stream;
    made.timeout = timeout;
    return made;
  }
};

using DeviceBody = std::function<void(DeviceRank&)>;

/// What a device communicator of a test is made with. `control` must outlive it.
inline comm::CommunicatorOptions device_options(comm::Communicator& control) {
  comm::CommunicatorOptions options;
  options.name = "test";
  options.config.nccl_library = FARANDOLE_SIMULATED_NCCL;
  options.control = std::shared_ptr<comm::Communicator>(&control, [](auto*) {});
  return options;
}

inline std::unique_ptr<comm::DeviceCommunicator> make_device_communicator(
    const comm::CommunicatorOptions& options) {
  comm::InProcessStore unused;
  auto made = comm::make_communicator("nccl", unused, options);
  return std::unique_ptr<comm::DeviceCommunicator>(
      &dynamic_cast<comm::DeviceCommunicator&>(*made.release()));
}

/// `body` for a runner of ranks.
inline RankBody on_device(const DeviceBody& body) {
  return [body](comm::Communicator& control) {
    sim::set_current_device(control.rank());
    const auto group = make_device_communicator(device_options(control));
    DeviceRank rank{*group, sim::new_stream(control.rank())};
    body(rank);
  };
}

/// Lets the threads of ranks go on when all of them have come. A barrier of a group would not do: a
/// rank that fails first may abort the group while others are still in the barrier.
class StartTogether {
 public:
  explicit StartTogether(int world_size) : missing_(world_size) {}

  void arrive_and_wait() {
    std::unique_lock<std::mutex> lock(mutex_);
    if (--missing_ == 0) all_are_here_.notify_all();
    // A rank that could not make its communicator never comes.
    all_are_here_.wait_for(lock, std::chrono::seconds(10), [this] { return missing_ <= 0; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable all_are_here_;
  int missing_;  // under mutex_
};

/// Runs `body` on ranks that are threads, once all of them have made their communicators.
inline void run_device_ranks(int world_size, const DeviceBody& body) {
  StartTogether start(world_size);
  run_thread_ranks(world_size, on_device([&](DeviceRank& rank) {
                     start.arrive_and_wait();
                     body(rank);
                   }));
}

}  // namespace farandole::test
