// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/equal.h>
#include <ATen/ops/full.h>

#include <chrono>
#include <cstdlib>
#include <functional>
#include <string>

#include "farandole/process_group/process_group.h"
#include "process_group/group_ranks.h"
#include "support/simulated_device/device.h"
#include "support/simulated_device/no_races.h"
#include "support/simulated_device/torch/device_guard.h"

namespace farandole::test {

/// The backend "nccl" of this process works on simulated devices.
inline const bool uses_simulated_nccl =
    ::setenv("FARANDOLE_NCCL_LIBRARY", FARANDOLE_SIMULATED_NCCL, /*overwrite=*/1) == 0;

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
