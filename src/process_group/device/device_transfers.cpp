// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/device_transfers.h"

#include <utility>

#include "process_group/flat_tensor.h"

namespace farandole {

DeviceTransfer::DeviceTransfer(Direction direction, at::Tensor tensor, int peer, uint64_t tag)
    : direction_(direction), tensor_(std::move(tensor)), peer_(peer), tag_(tag) {}

void DeviceTransfer::make_flat() { flat_ = is_send() ? flat_input(tensor_) : flat_output(tensor_); }

std::shared_ptr<comm::Transfer> DeviceTransfer::begin(comm::Communicator& communicator,
                                                      const comm::CollectiveOptions& options) {
  if (is_send()) {
    return communicator.send(flat_.const_data_ptr(), flat_.nbytes(), peer_, tag_, options);
  }
  return communicator.receive(flat_.mutable_data_ptr(), flat_.nbytes(), peer_, tag_, options);
}

void DeviceTransfer::store() {
  if (!is_send()) store_flat(flat_, tensor_);
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
  for (DeviceTransfer& each : transfers) each.store();
}

}  // namespace farandole
