// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <ostream>
#include <string>
#include <vector>

#include "farandole/process_group/process_group.h"
#include "process_group/group_ranks.h"
#include "support/simulated_device/device.h"
#include "support/simulated_device/no_races.h"
#include "support/simulated_device/torch/device_guard.h"

namespace farandole::test {

/// The backend "nccl" of this process works on simulated devices.
inline const bool uses_simulated_nccl =
    ::setenv("FARANDOLE_NCCL_LIBRARY", FARANDOLE_SIMULATED_NCCL, /*overwrite=*/1) == 0;

/// Under which schedule devices work, and how their tensors travel.
struct Way {
  sim::Schedule schedule;
  bool is_staged;
};
inline std::ostream& operator<<(std::ostream& out, const Way& way) {
  return out << way.schedule << (way.is_staged ? "Staged" : "Nccl");
}

/// A test of groups on simulated devices; it fails if the race detector has reports at the end. A
/// suite derives from it and is instantiated with kEveryWay, or with what of it applies.
class DeviceGroups : public ::testing::TestWithParam<Way> {
 protected:
  void SetUp() override {
    sim::set_schedule(GetParam().schedule);
    ::setenv("FARANDOLE_DEVICE_BACKEND", is_staged() ? "staged" : "nccl", /*overwrite=*/1);
  }
  void TearDown() override { sim::expect_no_races(); }

  static bool is_staged() { return GetParam().is_staged; }
};

inline std::vector<Way> ways(const std::vector<bool>& staged) {
  using sim::Schedule;
  std::vector<Way> all;
  for (const bool is_staged : staged) {
    for (const Schedule schedule :
         {Schedule::kEager, Schedule::kLazy, Schedule::kSlowDefault, Schedule::kSlowSide}) {
      all.push_back({schedule, is_staged});
    }
  }
  return all;
}
inline const auto kEveryWay = ::testing::ValuesIn(ways({false, true}));
inline const auto kOnlyNccl = ::testing::ValuesIn(ways({false}));
inline const auto kOnlyStaged = ::testing::ValuesIn(ways({true}));

/// The device of a rank that is a thread.
inline c10::Device device_of(int rank) { return {sim::kSim, static_cast<c10::DeviceIndex>(rank)}; }

/// A tensor of the rank, which a kernel of the current stream fills.
inline at::Tensor full(const ProcessGroupFarandole& group, at::IntArrayRef sizes, double value) {
  return at::full(sizes, value, at::TensorOptions(at::kFloat).device(device_of(group.getRank())));
}

/// Waits for the current stream.
inline bool holds(const at::Tensor& tensor, double value) {
  return at::equal(tensor.cpu(), at::full(tensor.sizes(), value, at::kFloat));
}

/// Runs `body` on ranks that are threads, each with a device of its own.
inline void run_device_ranks(int world_size, const GroupBody& body,
                             std::chrono::milliseconds timeout = std::chrono::seconds(30)) {
  run_group_ranks(
      world_size,
      [&](ProcessGroupFarandole& group) {
        sim::set_current_device(group.getRank());
        body(group);
      },
      timeout);
}

}  // namespace farandole::test
