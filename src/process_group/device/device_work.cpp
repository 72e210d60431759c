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
#include "log.h"
#include "process_group/device/torch_variables.h"

namespace farandole {
namespace {

/// That of the calling thread on the device of `operation`.
c10::Stream current_stream(const DeviceOperation& operation) {
  const c10::Device device = operation.stream().device();
  return c10::impl::VirtualGuardImpl(device.type()).getStream(device);
}

/// Callbacks of the future may throw.
void settle(c10::ivalue::Future& future, const std::vector<at::Tensor>& outputs,
            const DeviceOperation& operation) {
  try {
    if (const std::exception_ptr failure = operation.failure()) {
      future.setError(as_autograd_error(failure));
      return;
    }
    const c10::StreamGuard on_stream(operation.stream());  // where the future records its event
    future.markCompleted(c10::IValue(outputs));
  } catch (const std::exception& error) {
    log(LogLevel::kError,
        std::string("a callback of a collective's future threw: ") + error.what());
  }
}

}  // namespace

DeviceWork::DeviceWork(Description description, std::shared_ptr<DeviceOperation> operation,
                       Abort abort, int peer)
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
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  if (!operation_->wait_until_enqueued(timeout)) throw_wait_timeout(timeout);
  // Of a failed one, too: tensors may be let go when the device has left them.
  operation_->make_wait(current_stream(*operation_));
  operation_->check();
  if (timeout > kNoTimeout || waits_on_host()) wait_on_host(timeout, deadline);
  return true;
}

/// Looks again and again: a wait for an event has no timeout, and would hide a failure of the
/// group.
void DeviceWork::wait_on_host(std::chrono::milliseconds timeout,
                              std::chrono::steady_clock::time_point deadline) const {
  constexpr std::chrono::microseconds kPause{200};
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
  future_ = c10::make_intrusive<c10::ivalue::Future>(
      c10::ListType::create(c10::TensorType::get()),
      std::vector<c10::Device>{operation_->stream().device()});
  // The operation calls it; this Work may be dropped before.
  operation_->when_enqueued([future = future_, outputs = result(), operation = operation_.get()] {
    settle(*future, outputs, *operation);
  });
  return future_;
}

}  // namespace farandole
