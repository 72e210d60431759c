// SPDX-License-Identifier: Apache-2.0
#include "process_group/device/device_operation.h"

#include <utility>

#include "farandole/error.h"

namespace farandole {
namespace {

c10::EventFlag flag_of(bool timed) {
  return timed ? c10::EventFlag::BACKEND_DEFAULT : c10::EventFlag::PYTORCH_DEFAULT;
}

}  // namespace

DeviceOperation::DeviceOperation(const char* operation, uint64_t sequence,
                                 std::chrono::milliseconds timeout, const c10::Stream& stream,
                                 bool timed, bool captured)
    : operation_(operation),
      sequence_(sequence),
      timeout_(timeout),
      stream_(stream),
      timed_(timed),
      captured_(captured),
      inputs_there_(stream.device_type(), flag_of(timed)),
      ended_(stream.device_type(), flag_of(timed)) {}

std::string DeviceOperation::name() const {
  if (sequence_ == 0) return operation_;
  return "collective #" + std::to_string(sequence_) + " " + operation_;
}

void DeviceOperation::note_inputs(const c10::Stream& caller) {
  caller_ = caller;
  inputs_there_.record(caller);
}

void DeviceOperation::await_inputs() { inputs_there_.block(stream_); }

void DeviceOperation::end() { ended_.record(stream_); }

void DeviceOperation::note_enqueued() {
  std::function<void()> driver;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    is_enqueued_.store(true, std::memory_order_release);
    driver.swap(driver_);
  }
  enqueued_.notify_all();
}

bool DeviceOperation::has_callbacks() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return !callbacks_.empty();
}

void DeviceOperation::call_back() {
  std::vector<std::function<void()>> callbacks;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    callbacks.swap(callbacks_);
  }
  for (const auto& callback : callbacks) callback();
}

void DeviceOperation::when_enqueued(std::function<void()> callback) {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!is_enqueued_) return callbacks_.push_back(std::move(callback));
  }
  callback();
}

void DeviceOperation::set_driver(std::function<void()> driver) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (!is_enqueued_) driver_ = std::move(driver);
}

bool DeviceOperation::wait_until_enqueued(std::chrono::milliseconds timeout) const {
  if (is_enqueued_.load(std::memory_order_acquire)) return true;
  const auto is_done = [this] { return is_enqueued_.load(); };
  std::unique_lock<std::mutex> lock(mutex_);
  if (timeout > std::chrono::milliseconds(0)) return enqueued_.wait_for(lock, timeout, is_done);
  if (const auto driver = driver_) {
    lock.unlock();
    driver();
    lock.lock();
  }
  enqueued_.wait(lock, is_done);
  return true;
}

void DeviceOperation::keep(Body body) {
  const std::lock_guard<std::mutex> lock(mutex_);
  kept_ = std::move(body);
}

void DeviceOperation::make_wait(const c10::Stream& stream) {
  if (stream != caller_) return ended_.block(stream);
  {
    // Held while the wait is enqueued: another thread that returns before would use the results
    // ahead of it.
    const std::lock_guard<std::mutex> lock(mutex_);
    if (caller_waits_) return;
    ended_.block(stream);
    caller_waits_ = true;
  }
  let_go();
}

bool DeviceOperation::has_inputs() const { return captured_ || inputs_there_.query(); }

void DeviceOperation::runs_on(std::weak_ptr<const comm::Communicator> communicator) {
  communicator_ = std::move(communicator);
}

bool DeviceOperation::has_ended() const {
  if (captured_ || is_settled_) return true;
  if (!is_enqueued_.load(std::memory_order_acquire) || !ended_.query()) return false;
  return !is_in_doubt() || failure();  // asked after the event, which an abort sets
}

/// Whether an abort may have ended it: after doom(), or by a communicator that has met an error.
bool DeviceOperation::is_in_doubt() const {
  if (doomed_) return true;
  try {
    if (const auto communicator = communicator_.lock()) communicator->check_usable();
  } catch (const CommError&) {
    return true;
  }
  return false;
}

std::chrono::duration<double, std::milli> DeviceOperation::run_time() const {
  return std::chrono::duration<double, std::milli>(inputs_there_.elapsedTime(ended_));
}

void DeviceOperation::let_go() {
  Body kept;  // tensors may need a lock of another language to end: not under ours
  const std::lock_guard<std::mutex> lock(mutex_);
  kept.swap(kept_);
}

void DeviceOperation::fail(std::exception_ptr failure) {
  const std::lock_guard<std::mutex> lock(mutex_);
  failure_ = std::move(failure);
}

std::exception_ptr DeviceOperation::failure() const {
  const std::lock_guard<std::mutex> lock(mutex_);
  return failure_;
}

void DeviceOperation::check() const {
  if (const std::exception_ptr failed = failure()) std::rethrow_exception(failed);
}

}  // namespace farandole
