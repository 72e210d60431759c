// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/device_lane.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <thread>
#include <utility>

#include "farandole/error.h"
#include "log.h"
#include "process_group/collective_queue.h"
#include "process_group/device/device_work.h"
#include "process_group/device/stream_capture.h"
#include "process_group/device/torch_variables.h"

namespace farandole {
namespace {

std::string text_of(const std::exception_ptr& failure) {
  try {
    std::rethrow_exception(failure);
  } catch (const std::exception& error) {
    return error.what();
  }
}

/// `failure` if it is one of ours, else what a device has thrown in our terms.
std::exception_ptr as_own_error(const std::exception_ptr& failure, const std::string& who) {
  try {
    std::rethrow_exception(failure);
  } catch (const Error&) {
    return failure;
  } catch (const std::exception& error) {
    return std::make_exception_ptr(SystemError(
        "device-failed", who + " cannot go on: its device has failed.", error.what(),
        "look for the first error of the device on this rank; operations that read or write "
        "outside of their memory are the usual reason."));
  }
}

std::exception_ptr after_shutdown(const std::string& group) {
  try {
    refuse_after_shutdown(group);
  } catch (const AbortedError&) {
    return std::current_exception();
  }
}

}  // namespace

std::optional<c10::Device> DeviceLane::device() const {
  const std::lock_guard<std::mutex> lock(state_mutex_);
  return device_;
}

DeviceLane::DeviceLane(Parts parts) : parts_(std::move(parts)) {}

DeviceLane::~DeviceLane() = default;

bool DeviceLane::is_connected(c10::Device device) const {
  const std::lock_guard<std::mutex> lock(state_mutex_);
  if (device_ && *device_ != device) {
    throw InvalidArgument(
        "second-device",
        "group '" + parts_.group + "' on rank " + std::to_string(parts_.rank) +
            " got a tensor on " + device.str() + " after one on " + device_->str() + ".",
        "a rank has one device in a group: peers know it by that device.",
        "start one process for each device, and call torch.accelerator.set_device_index("
        "local_rank) before tensors are made.");
  }
  return communicator_ != nullptr;
}

void DeviceLane::connect(c10::Device device) {
  check_usable();
  if (is_connected(device)) return;
  warn_of_torch_variables();
  const c10::DeviceGuard on_device(device);
  Communicator made = parts_.form();
  std::shared_ptr<ProgressBoard> board = parts_.make_board();
  const c10::impl::VirtualGuardImpl devices(parts_.type);
  const std::lock_guard<std::mutex> lock(state_mutex_);
  device_ = device;
  stream_ = devices.getStreamFromGlobalPool(device, /*isHighPriority=*/true);
  communicator_ = std::move(made);
  board_ = std::move(board);
}

DeviceLane::Communicator DeviceLane::communicator() const {
  const std::lock_guard<std::mutex> lock(state_mutex_);
  return communicator_;
}

std::shared_ptr<ProgressBoard> DeviceLane::board() const {
  const std::lock_guard<std::mutex> lock(state_mutex_);
  return board_;
}

std::optional<c10::Stream> DeviceLane::stream() const {
  const std::lock_guard<std::mutex> lock(state_mutex_);
  return stream_;
}

std::exception_ptr DeviceLane::failure() const {
  const std::lock_guard<std::mutex> lock(state_mutex_);
  return failure_;
}

void DeviceLane::check_usable() const {
  if (const std::exception_ptr failed = failure()) std::rethrow_exception(failed);
}

c10::intrusive_ptr<c10d::Work> DeviceLane::launch(const Call& call, Body body, uint64_t sequence,
                                                  std::chrono::milliseconds timeout) {
  const std::lock_guard<std::mutex> lock(enqueue_mutex_);
  check_usable();
  const Communicator communicator = this->communicator();
  const c10::Stream own = *stream();
  const c10::Stream caller = c10::impl::VirtualGuardImpl(parts_.type).getStream(own.device());
  const auto operation = std::make_shared<DeviceOperation>(
      call.operation.name, sequence, timeout, own, parts_.asks_for_times(), is_captured(caller));
  board()->note(sequence, call);
  {
    const c10::StreamGuard on_stream(own);  // copies run there, and temporary tensors belong there
    operation->begin(caller);
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    comm::CollectiveOptions options;
    options.timeout = timeout;
    options.stream = own.native_handle();
    body(*communicator, options);
    operation->end();
  }
  auto work = c10::make_intrusive<DeviceWork>(
      WorkFarandole::Description{parts_.rank, call.operation.type, call.operation.name,
                                 parts_.group, call.outputs},
      operation,
      [lane = weak_from_this()] {
        if (const auto alive = lane.lock()) alive->abort("abort() was called on a Work");
      },
      call.peer);
  operation->set_completion_key(work->completion_key());
  if (call.async) {
    operation->keep(std::move(body));
  } else {
    operation->make_wait(caller);
  }
  if (!operation->is_captured() && pending_.add(operation)) {
    DeviceWatchdog::of_process().watch(weak_from_this());
  }
  return work;
}

std::shared_ptr<comm::DeviceMemory> DeviceLane::allocate(size_t bytes,
                                                         std::chrono::milliseconds timeout) {
  const std::lock_guard<std::mutex> lock(enqueue_mutex_);
  check_usable();
  const c10::OptionalDeviceGuard on_device(device());
  comm::CollectiveOptions options;
  options.timeout = timeout;
  options.stream = stream()->native_handle();
  return communicator()->allocate(bytes, options);
}

bool DeviceLane::look() {
  // Events go with their operations here; on another device that would make a context there.
  const c10::OptionalDeviceGuard on_device(device());
  try {
    const auto ended = pending_.take_ended();
    // What an abort has ended looks as if it had ended well, so ask after the events.
    const std::exception_ptr over = failure() ? failure() : failure_of_communicator();
    for (const auto& operation : ended) {
      if (over) operation->fail(over);
      retire(*operation);
    }
    if (pending_.rest()) return false;
    if (const std::exception_ptr failed = failure()) {
      pending_.fail(failed);  // those that came while the lane failed, too
    } else {
      check_peers();
      check_time(pending_.first());
    }
  } catch (const Error&) {
    fail(std::current_exception());
  } catch (const std::exception&) {  // the device has failed: it runs nothing any more
    fail(std::current_exception());
    pending_.take_all();
  }
  return !pending_.rest();
}

std::exception_ptr DeviceLane::failure_of_communicator() const {
  const Communicator present = communicator();
  if (!present) return nullptr;
  try {
    present->check_usable();
  } catch (const CommError&) {
    return std::current_exception();
  }
  return nullptr;
}

void DeviceLane::retire(DeviceOperation& operation) const {
  operation.let_go();
  if (operation.failure() || !operation.is_timed()) return;
  parts_.on_end(operation.completion_key(), operation.run_time());
}

/// Throws what has happened to the communicator or a peer. A peer may end as soon as it has done
/// its part, so a lost one gets the blame only if that does not end the operation soon.
void DeviceLane::check_peers() {
  constexpr std::chrono::seconds kGrace{1};
  const Communicator communicator = this->communicator();
  if (!communicator) return;
  communicator->check_usable();
  const auto now = std::chrono::steady_clock::now();
  try {
    if (!lost_) communicator->control()->check_alive();
  } catch (const PeerFailure&) {
    lost_ = std::current_exception();
    lost_since_ = now;
  }
  if (!lost_) {
    communicator->check_alive();
  } else if (const auto first = pending_.first(); !first || !first->has_inputs()) {
    lost_since_ = now;  // this rank still computes
  } else if (now - lost_since_ > kGrace) {
    std::rethrow_exception(lost_);
  }
}

/// Throws TimeoutError if `first` waits for other ranks for too long.
void DeviceLane::check_time(const std::shared_ptr<DeviceOperation>& first) {
  if (!first || !first->has_inputs()) return;
  const auto now = std::chrono::steady_clock::now();
  if (running_.lock() != first) {
    running_ = first;
    running_since_ = now;
    return;
  }
  if (now - running_since_ < first->timeout()) return;
  ProgressBoard::Finding finding = board()->explain(first->sequence());
  if (finding.why.empty()) {
    finding.why =
        "its inputs are there, so it waits for other ranks: they have not called it, or another "
        "collective in its place.";
  }
  throw TimeoutError(
      "device-timeout",
      first->name() + " in group '" + parts_.group + "' on rank " + std::to_string(parts_.rank) +
          " has not ended within " + std::to_string(first->timeout().count()) + " ms.",
      finding.why,
      "look at the errors of the other ranks; all ranks must call the same collectives in the same "
      "order. If ranks may be late by more, set a longer timeout.",
      {finding.ranks, first->operation()});
}

/// Keeps the first failure, ends the group on all ranks, and tells those who wait.
void DeviceLane::fail(const std::exception_ptr& met) {
  const std::exception_ptr failure =
      as_own_error(met, "group '" + parts_.group + "' on rank " + std::to_string(parts_.rank));
  std::exception_ptr first;
  {
    const std::lock_guard<std::mutex> lock(state_mutex_);
    if (!failure_) failure_ = failure;
    first = failure_;
  }
  pending_.doom();
  if (const Communicator communicator = this->communicator()) {
    communicator->abort(text_of(failure));
  }
  parts_.on_failure(first);
  pending_.fail(first);
}

void DeviceLane::abort(const std::string& reason) {
  const Communicator communicator = this->communicator();
  if (!communicator) return;
  pending_.doom();
  communicator->abort(reason);  // after which it throws
  if (const std::exception_ptr over = failure_of_communicator()) fail(over);
}

void DeviceLane::end() {
  const bool is_over = failure() || failure_of_communicator();
  if (!is_over) retire_within(std::chrono::seconds(2));
  if (pending_.first()) {
    // Before the abort: what it ends would look as if it had ended well.
    pending_.fail(std::make_exception_ptr(AbortedError(
        "device-shut-down",
        "group '" + parts_.group + "' was shut down on rank " + std::to_string(parts_.rank) +
            " with operations pending on its device.",
        "destroy(), shutdown() or the exit of the process ended it, and other ranks did not take "
        "part in these operations within two seconds.",
        "wait for all operations on all ranks before the group ends.")));
    if (const Communicator pending = communicator()) {
      pending->abort("the group was shut down with operations pending on a device");
    }
    retire_within(std::chrono::milliseconds(200));
    pending_.take_all();
  }
  Communicator ended;
  const std::lock_guard<std::mutex> lock(state_mutex_);
  ended.swap(communicator_);
  if (!failure_) failure_ = after_shutdown(parts_.group);
}

/// Returns when nothing is pending, or after `grace`.
void DeviceLane::retire_within(std::chrono::milliseconds grace) {
  const auto deadline = std::chrono::steady_clock::now() + grace;
  try {
    while (pending_.first()) {
      for (const auto& operation : pending_.take_ended()) retire(*operation);
      if (std::chrono::steady_clock::now() > deadline) return;
      if (pending_.first()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
  } catch (const std::exception& error) {
    log(LogLevel::kDebug, "group '" + parts_.group + "' ends early: " + error.what());
  }
}

}  // namespace farandole
