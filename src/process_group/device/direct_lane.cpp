// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/direct_lane.h"

#include <ATen/core/LegacyTypeDispatch.h>
#include <c10/core/DeviceGuard.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <utility>

#include "farandole/error.h"
#include "process_group/collective_queue.h"
#include "process_group/device/device_failure.h"
#include "process_group/device/stream_capture.h"

namespace farandole {
namespace {

std::exception_ptr after_shutdown(const std::string& group) {
  try {
    refuse_after_shutdown(group);
  } catch (const AbortedError&) {
    return std::current_exception();
  }
}

}  // namespace

DirectLane::DirectLane(Parts parts, Communicator communicator, std::unique_ptr<ProgressBoard> board)
    : DeviceLane(std::move(parts)),
      board_(std::move(board)),
      communicator_(std::move(communicator)) {}

DirectLane::~DirectLane() = default;

DirectLane::Communicator DirectLane::communicator() const {
  const std::lock_guard<std::mutex> lock(state_mutex_);
  return communicator_;
}

std::exception_ptr DirectLane::failure() const {
  const std::lock_guard<std::mutex> lock(state_mutex_);
  return failure_;
}

void DirectLane::check_usable() const {
  if (const std::exception_ptr failed = failure()) std::rethrow_exception(failed);
}

/// `call` is on a stream that is not captured. A capture has the lane's stream from its first
/// operation to its end.
void DirectLane::check_not_captured(const Call& call) const {
  if (!is_captured(stream())) return;
  throw NotSupported("captured-stream",
                     std::string(call.operation.name) + " in " + own_position() +
                         " cannot run while other operations of the group are captured.",
                     "the stream of the group is captured into a graph, and the current stream is "
                     "not.",
                     "call it on a stream that the capture holds, or after the capture.");
}

c10::intrusive_ptr<c10d::Work> DirectLane::launch(Call& call, Body body,
                                                  std::chrono::milliseconds timeout) {
  const std::lock_guard<std::mutex> lock(enqueue_mutex_);
  check_usable();
  const Communicator communicator = this->communicator();
  const c10::Stream& own = stream();
  const c10::Stream caller = c10::impl::VirtualGuardImpl(own.device_type()).getStream(own.device());
  const bool captured = is_captured(caller);
  if (!captured) check_not_captured(call);
  const auto operation = std::make_shared<DeviceOperation>(
      call.operation.name, call.sequence, timeout, own, parts().asks_for_times(), captured);
  operation->runs_on(communicator);
  board_->note(call.sequence, call);
  {
    const c10::StreamGuard on_stream(own);  // copies run there, and temporary tensors belong there
    operation->note_inputs(caller);
    operation->await_inputs();
    const at::AutoDispatchBelowADInplaceOrView below_autograd;
    comm::CollectiveOptions options;
    options.timeout = timeout;
    options.stream = own.native_handle();
    body(*communicator, options);
    operation->end();
    operation->note_enqueued();
  }
  auto work = make_work(call, operation, [lane = weak_from_this()](const std::string& reason) {
    if (const auto alive = lane.lock()) alive->abort(reason);
  });
  if (call.async) {
    operation->keep(std::move(body));
  } else {
    operation->make_wait(caller);
  }
  if (!operation->is_captured()) watch(operation);
  return work;
}

std::shared_ptr<comm::DeviceMemory> DirectLane::allocate(size_t bytes,
                                                         const c10::Stream& /*caller*/,
                                                         std::chrono::milliseconds timeout) {
  const std::lock_guard<std::mutex> lock(enqueue_mutex_);
  check_usable();
  const c10::DeviceGuard on_device(stream().device());
  comm::CollectiveOptions options;
  options.timeout = timeout;
  options.stream = stream().native_handle();
  return communicator()->allocate(bytes, options);
}

bool DirectLane::look() {
  // Events go with their operations here; on another device that would make a context there.
  c10::OptionalDeviceGuard on_device;
  try {
    on_device.reset_device(stream().device());
    const auto ended = pending().take_ended();
    // What an abort has ended looks as if it had ended well, so ask after the events.
    const std::exception_ptr over = failure() ? failure() : failure_of_communicator();
    for (const auto& operation : ended) {
      if (over) operation->fail(over);
      retire(*operation);
    }
    if (pending().rest()) return false;
    if (const std::exception_ptr failed = failure()) {
      pending().fail(failed);  // those that came while the lane failed, too
    } else {
      check_peers();
      check_time(pending().first());
    }
  } catch (const Error&) {
    fail(std::current_exception());
  } catch (const std::exception&) {  // the device has failed: it runs nothing any more
    fail(std::current_exception());
    pending().take_all();
  }
  return !pending().rest();
}

std::exception_ptr DirectLane::failure_of_communicator() const {
  const Communicator present = communicator();
  if (!present) return nullptr;
  try {
    present->check_usable();
  } catch (const CommError&) {
    return std::current_exception();
  }
  return nullptr;
}

/// Throws what has happened to the communicator or a peer. A peer may end as soon as it has done
/// its part, so a lost one gets the blame only if that does not end the operation soon.
void DirectLane::check_peers() {
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
  } else if (const auto first = pending().first(); !first || !first->has_inputs()) {
    lost_since_ = now;  // this rank still computes
  } else if (now - lost_since_ > kGrace) {
    std::rethrow_exception(lost_);
  }
}

/// Throws TimeoutError if `first` waits for other ranks for too long.
void DirectLane::check_time(const std::shared_ptr<DeviceOperation>& first) {
  if (!first || !first->has_inputs()) return;
  const auto now = std::chrono::steady_clock::now();
  if (running_.lock() != first) {
    running_ = first;
    running_since_ = now;
    return;
  }
  if (now - running_since_ < first->timeout()) return;
  ProgressBoard::Finding finding = board_->explain(first->sequence());
  if (finding.why.empty()) {
    finding.why =
        "its inputs are there, so it waits for other ranks: they have not called it, or another "
        "collective in its place.";
  }
  throw TimeoutError(
      "device-timeout",
      first->name() + " in group '" + parts().group + "' on rank " + std::to_string(parts().rank) +
          " has not ended within " + std::to_string(first->timeout().count()) + " ms.",
      finding.why,
      "look at the errors of the other ranks; all ranks must call the same collectives in the same "
      "order. If ranks may be late by more, set a longer timeout.",
      {finding.ranks, first->operation()});
}

/// Keeps the first failure, ends the group on all ranks, and tells those who wait.
void DirectLane::fail(const std::exception_ptr& met) {
  const std::exception_ptr failure = as_own_error(met, own_position());
  std::exception_ptr first;
  {
    const std::lock_guard<std::mutex> lock(state_mutex_);
    if (!failure_) failure_ = failure;
    first = failure_;
  }
  pending().doom();
  if (const Communicator communicator = this->communicator()) {
    communicator->abort(text_of(failure));
  }
  parts().on_failure(first);
  pending().fail(first);
}

void DirectLane::abort(const std::string& reason) {
  const Communicator communicator = this->communicator();
  if (!communicator) return;
  pending().doom();
  communicator->abort(reason);  // after which it throws
  if (const std::exception_ptr over = failure_of_communicator()) fail(over);
}

void DirectLane::end() {
  const bool is_over = failure() || failure_of_communicator();
  if (!is_over) retire_within(std::chrono::seconds(2));
  if (pending().first()) {
    // Before the abort: what it ends would look as if it had ended well.
    pending().fail(std::make_exception_ptr(AbortedError(
        "device-shut-down",
        "group '" + parts().group + "' was shut down on rank " + std::to_string(parts().rank) +
            " with operations pending on its device.",
        "destroy(), shutdown() or the exit of the process ended it, and other ranks did not take "
        "part in these operations within two seconds.",
        "wait for all operations on all ranks before the group ends.")));
    if (const Communicator pending = communicator()) {
      pending->abort("the group was shut down with operations pending on a device");
    }
    retire_within(std::chrono::milliseconds(200));
    pending().take_all();
  }
  Communicator ended;
  const std::lock_guard<std::mutex> lock(state_mutex_);
  ended.swap(communicator_);
  if (!failure_) failure_ = after_shutdown(parts().group);
}

}  // namespace farandole
