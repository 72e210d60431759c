// SPDX-License-Identifier: Apache-2.0
// What of ProcessGroupFarandole is between two ranks.
#include <ATen/core/LegacyTypeDispatch.h>
#include <ATen/record_function.h>

#include "process_group/flat_tensor.h"
#include "process_group/process_group_private.h"
#include "process_group/transfers_in_flight.h"

namespace farandole {
namespace {

uint64_t tag_of(int tag) { return static_cast<uint64_t>(static_cast<int64_t>(tag)); }

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
  parts.communicator = communicators->of(flat.device().type());
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
  return work;
}

ProcessGroupFarandole::Work ProcessGroupFarandole::send(Tensors& tensors, int destination,
                                                        int tag) {
  static constexpr Operation kOperation{c10d::OpType::SEND, "send", "farandole:send"};
  const Caller by = caller(kOperation);
  check_single_input(by, tensors);
  check_peer(by, destination);
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
  check_single_output(caller(operation), tensors);
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
