// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "farandole/comm/device_communicator.h"

namespace farandole {

/// A send or receive of a tensor on an accelerator.
class DeviceTransfer {
 public:
  enum class Direction { kSend, kReceive };

  DeviceTransfer(Direction direction, at::Tensor tensor, int peer, uint64_t tag);

  const at::Tensor& tensor() const { return tensor_; }
  int peer() const { return peer_; }
  bool is_send() const { return direction_ == Direction::kSend; }

  // The steps of a transfer. Copies of tensors that are not flat run on the current stream.
  void make_flat();
  std::shared_ptr<comm::Transfer> begin(comm::Communicator& communicator,
                                        const comm::CollectiveOptions& options);
  /// Once it is enqueued or done.
  void store();

 private:
  Direction direction_;
  at::Tensor tensor_;
  at::Tensor flat_;
  int peer_;
  uint64_t tag_;
};

/// Puts `transfers` on options.stream, which is the current one, as one operation without an order
/// of its own.
void enqueue(std::vector<DeviceTransfer>& transfers, comm::DeviceCommunicator& communicator,
             const comm::CollectiveOptions& options);

}  // namespace farandole
