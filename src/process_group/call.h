// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "farandole/comm/communicator.h"
#include "process_group/device/device_transfers.h"
#include "process_group/time_estimator.h"

namespace farandole {

/// The names of a collective: c10d's, ours, and what torch.profiler shows.
struct Operation {
  c10d::OpType type;
  const char* name;
  const char* profiler_title;
};

/// One call of a collective, all but what it does.
struct Call {
  Operation operation;
  std::vector<at::Tensor> outputs;
  bool async;
  std::chrono::milliseconds timeout;
  /// What the time estimator takes it for; without one it runs even while times are estimated.
  std::optional<Cost> cost;
  /// Of its tensors, as check_tensor() admits them: whose communicator runs it.
  c10::Device device = c10::Device(c10::DeviceType::CPU);
  /// What a send, receive or batch of them on an accelerator moves; null otherwise.
  std::shared_ptr<std::vector<DeviceTransfer>> transfers{};
  /// The rank at the other side of a send or receive; -1 for a collective.
  int peer = -1;
  /// The number of a collective that is not run in the group's queue, which numbers the others.
  uint64_t sequence = 0;
};

/// What a call does with the communicator of its device.
using Body = std::function<void(comm::Communicator&, const comm::CollectiveOptions&)>;

}  // namespace farandole
