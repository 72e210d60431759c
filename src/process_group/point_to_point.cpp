// SPDX-License-Identifier: Apache-2.0
// What of ProcessGroupFarandole is between two ranks.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>

#include "farandole/error.h"
#include "process_group/coalescing.h"
#include "process_group/flat_tensor.h"
#include "process_group/process_group_private.h"
#include "process_group/transfers_in_flight.h"

namespace farandole {
namespace {

uint64_t tag_of(int tag) { return static_cast<uint64_t>(static_cast<int64_t>(tag)); }

[[noreturn]] void throw_any_source(const Caller& caller, const at::Tensor& tensor) {
  throw NotSupported(
      "any-source-device",
      caller.describe() + " cannot receive from any rank on " + tensor.device().str() + ".",
      "a message to an accelerator goes straight into its memory, so the receiver "
      "must know who sends it.",
      "pass the source rank, or receive into a tensor on the CPU.");
}

}  // namespace

/// Begins a transfer and keeps it until it is done. Transfers have no place in the group's queue:
/// they run beside collectives.
template <class Begin>
ProcessGroupFarandole::Work ProcessGroupFarandole::begin_transfer(const Operation& operation,
                                                                  const Tensors& tensors,
                                                                  const at::Tensor& flat,
                                                                  const at::Tensor& target,
                                                                  const Begin& begin) {
  const auto communicators = this->communicators();
  if (communicators->estimator().add({1, 2 * bytes_of(flat)})) {
    return communicators->finished(operation, tensors);
  }
  TransferWork::Parts parts;
  parts.communicator = communicators->host();
  parts.flat = flat;
  parts.target = target;
  parts.in_flight = communicators->transfers();
  parts.on_end = [communicators, begin_time = std::chrono::steady_clock::now()](
                     const WorkFarandole& work, const std::exception_ptr& failure) {
    if (failure) {
      communicators->note_error(failure);
    } else if (communicators->wants_completions()) {
      communicators->note_completion(work, std::chrono::steady_clock::now() - begin_time);
    }
  };
  const comm::CollectiveOptions options{communicators->timeout_of(kNoTimeout)};
  try {
    parts.transfer = begin(*parts.communicator, options);
  } catch (...) {
    communicators->note_error(std::current_exception());
    throw;
  }
  const char* title = at::hasCallbacks() ? operation.profiler_title : nullptr;
  auto work = c10::make_intrusive<TransferWork>(
      WorkFarandole::Description{rank_, operation.type, operation.name, name(), tensors},
      std::move(parts), title);
  communicators->transfers()->add(work);
  if (coalescing_->is_active()) coalescing_->add(work);
  return work;
}

/// Transfers of an accelerator are on the group's stream, between its collectives.
ProcessGroupFarandole::Work ProcessGroupFarandole::launch_transfers(
    const Operation& operation, std::vector<DeviceTransfer> transfers) {
  double bytes = 0;
  Tensors tensors;
  for (const DeviceTransfer& each : transfers) {
    bytes += bytes_of(each.tensor());
    tensors.push_back(each.tensor());
  }
  const c10::Device device = tensors.front().device();
  const int peer = transfers.front().peer();
  // The body is kept, and with it the flat copies.
  const auto shared = std::make_shared<std::vector<DeviceTransfer>>(std::move(transfers));
  return communicators()->launch(
      {operation, std::move(tensors), /*async=*/true, kNoTimeout, Cost{1, 2 * bytes}, device,
       shared, peer},
      [shared](comm::Communicator& communicator, const auto& options) {
        enqueue(*shared, static_cast<comm::DeviceCommunicator&>(communicator), options);
      });
}

ProcessGroupFarandole::Work ProcessGroupFarandole::transfer_on_device(const Operation& operation,
                                                                      DeviceTransfer transfer) {
  if (!coalescing_->is_active()) return launch_transfers(operation, {std::move(transfer)});
  auto work = communicators()->finished(operation, {transfer.tensor()});
  coalescing_->add(std::move(transfer));
  return work;
}

ProcessGroupFarandole::Work ProcessGroupFarandole::send(Tensors& tensors, int destination,
                                                        int tag) {
  static constexpr Operation kOperation{c10d::OpType::SEND, "send", "farandole:send"};
  const Caller by = caller(kOperation);
  check_single_input(by, tensors);
  check_peer(by, destination);
  if (!tensors.front().is_cpu()) {
    return transfer_on_device(
        kOperation, {DeviceTransfer::Direction::kSend, tensors.front(), destination, tag_of(tag)});
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor flat = flat_input(tensors.front());
  return begin_transfer(kOperation, tensors, flat, {}, [&](auto& communicator, auto& options) {
    return communicator.send(flat.const_data_ptr(), flat.nbytes(), destination, tag_of(tag),
                             options);
  });
}

ProcessGroupFarandole::Work ProcessGroupFarandole::receive_from(const Operation& operation,
                                                                Tensors& tensors, int source,
                                                                int tag) {
  const Caller by = caller(operation);
  check_single_output(by, tensors);
  if (!tensors.front().is_cpu()) {
    if (source == comm::Communicator::kAnySource) throw_any_source(by, tensors.front());
    return transfer_on_device(
        operation, {DeviceTransfer::Direction::kReceive, tensors.front(), source, tag_of(tag)});
  }
  const at::AutoDispatchBelowADInplaceOrView below_autograd;
  const at::Tensor flat = flat_output(tensors.front());
  return begin_transfer(operation, tensors, flat, tensors.front(),
                        [&](auto& communicator, auto& options) {
                          return communicator.receive(flat.mutable_data_ptr(), flat.nbytes(),
                                                      source, tag_of(tag), options);
                        });
}

ProcessGroupFarandole::Work ProcessGroupFarandole::recv(Tensors& tensors, int source, int tag) {
  static constexpr Operation kOperation{c10d::OpType::RECV, "recv", "farandole:recv"};
  check_peer(caller(kOperation), source);
  return receive_from(kOperation, tensors, source, tag);
}

ProcessGroupFarandole::Work ProcessGroupFarandole::recvAnysource(Tensors& tensors, int tag) {
  static constexpr Operation kOperation{c10d::OpType::RECVANYSOURCE, "recv_any_source",
                                        "farandole:recv_any_source"};
  return receive_from(kOperation, tensors, comm::Communicator::kAnySource, tag);
}

}  // namespace farandole
