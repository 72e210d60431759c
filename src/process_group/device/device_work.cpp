// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/device_work.h"

#include <ATen/core/ivalue.h>
#include <ATen/core/jit_type.h>
#include <c10/core/StreamGuard.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <thread>
#include <utility>

#include "farandole/error.h"
#include "farandole/process_group/autograd_error.h"
#include "process_group/device/torch_variables.h"

namespace farandole {
namespace {

/// That of the calling thread on the device of `operation`.
c10::Stream current_stream(const DeviceOperation& operation) {
  const c10::Device device = operation.stream().device();
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

}  // namespace

DeviceWork::DeviceWork(Description description, std::shared_ptr<DeviceOperation> operation,
                       std::function<void()> abort, int peer)
    : WorkFarandole(std::move(description), std::move(abort), /*profiler_title=*/nullptr),
      operation_(std::move(operation)),
      peer_(peer) {
  set_sequence(operation_->sequence());
}

DeviceWork::~DeviceWork() = default;

bool DeviceWork::isCompleted() { return operation_->failure() || operation_->has_ended(); }

bool DeviceWork::isSuccess() const { return operation_->has_ended() && !operation_->failure(); }

std::exception_ptr DeviceWork::exception() const { return operation_->failure(); }

void DeviceWork::synchronize() { wait(); }

bool DeviceWork::wait(std::chrono::milliseconds timeout) {
  // Of a failed one, too: tensors may be let go when the device has left them.
  operation_->make_wait(current_stream(*operation_));
  operation_->check();
  if (timeout > kNoTimeout || waits_on_host()) wait_on_host(timeout);
  return true;
}

/// Looks again and again: a wait for an event has no timeout, and would hide a failure of the
/// group.
void DeviceWork::wait_on_host(std::chrono::milliseconds timeout) const {
  constexpr std::chrono::microseconds kPause{200};
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  while (!operation_->has_ended()) {
    operation_->check();
    const bool is_late = timeout > kNoTimeout && std::chrono::steady_clock::now() > deadline;
    if (is_late) throw_wait_timeout(timeout);
    std::this_thread::sleep_for(kPause);
  }
  operation_->check();
}

c10::intrusive_ptr<c10::ivalue::Future> DeviceWork::getFuture() {
  const std::lock_guard<std::mutex> lock(future_mutex_);
  if (future_) return future_;
  const c10::Stream& stream = operation_->stream();
  future_ = c10::make_intrusive<c10::ivalue::Future>(c10::ListType::create(c10::TensorType::get()),
                                                     std::vector<c10::Device>{stream.device()});
  if (const std::exception_ptr failure = operation_->failure()) {
    future_->setError(as_autograd_error(failure));
  } else {
    const c10::StreamGuard on_stream(stream);  // where the future records its event
    future_->markCompleted(c10::IValue(result()));
  }
  return future_;
}

}  // namespace farandole
