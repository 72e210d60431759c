// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/device_transfers.h"

#include <utility>

#include "process_group/flat_tensor.h"

namespace farandole {

DeviceTransfer::DeviceTransfer(Direction direction, at::Tensor tensor, int peer, uint64_t tag)
    : direction_(direction), tensor_(std::move(tensor)), peer_(peer), tag_(tag) {}

void DeviceTransfer::make_flat() {
  flat_ = direction_ == Direction::kSend ? flat_input(tensor_) : flat_output(tensor_);
}

void DeviceTransfer::begin(comm::DeviceCommunicator& communicator,
                           const comm::CollectiveOptions& options) {
  if (direction_ == Direction::kSend) {
    communicator.send(flat_.const_data_ptr(), flat_.nbytes(), peer_, tag_, options);
  } else {
    communicator.receive(flat_.mutable_data_ptr(), flat_.nbytes(), peer_, tag_, options);
  }
}

void enqueue(std::vector<DeviceTransfer>& transfers, comm::DeviceCommunicator& communicator,
             const comm::CollectiveOptions& options) {
  // What is enqueued between begin_group() and end_group() may run before the group.
  for (DeviceTransfer& each : transfers) each.make_flat();
  communicator.begin_group();
  try {
    for (DeviceTransfer& each : transfers) each.begin(communicator, options);
  } catch (...) {
    try {
      communicator.end_group(options);
    } catch (const std::exception&) {  // the first error counts
    }
    throw;
  }
  communicator.end_group(options);
  for (DeviceTransfer& each : transfers) {
    if (each.direction_ == DeviceTransfer::Direction::kReceive) {
      store_flat(each.flat_, each.tensor_);
    }
  }
}

}  // namespace farandole
