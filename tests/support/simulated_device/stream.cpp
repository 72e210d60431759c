// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_device/stream.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "support/simulated_device/device.h"
#include "support/simulated_device/memory.h"
#include "support/simulated_device/schedule.h"
#include "support/simulated_device/seeded_fault.h"

namespace farandole::sim {
namespace {

std::atomic<uint64_t> waits{0};
/// What queries of this thread have found done.
thread_local VectorClock queried;

std::string name_of(int device, int64_t id) {
  return "sim:" + std::to_string(device) +
         (id == 0 ? " default stream" : " stream " + std::to_string(id));
}

std::vector<Access> on_device(std::vector<Access> accesses) {
  const auto is_on_host = [](const Access& access) { return !is_device_address(access.data); };
  accesses.erase(std::remove_if(accesses.begin(), accesses.end(), is_on_host), accesses.end());
  return accesses;
}

}  // namespace

Stream::Stream(int device, int64_t id)
    : device_(device),
      id_(id),
      number_(race_detector().add_stream(name_of(device, id))),
      queue_("sim:" + std::to_string(device) + "/" + std::to_string(id), WorkQueue::Kind::kStream) {
}

void Stream::launch(const std::string& kernel, const std::vector<Access>& accesses,
                    std::function<void()> body) {
  WorkQueue::check_process();
  check_device(device_);
  const std::lock_guard<std::mutex> lock(mutex_);
  order_after_queries();
  race_detector().launch(number_, kernel, on_device(accesses));
  queue_.push([this, kernel, body = std::move(body)] { run(kernel, body); });
}

void Stream::wait(const Event& event) {
  if (event.stream_ == nullptr || event.stream_ == this) return;
  if (leaves_out_wait(number_, event.stream_->number_)) return;
  WorkQueue::check_process();
  const std::lock_guard<std::mutex> lock(mutex_);
  race_detector().order(number_, event.clock_);
  queue_.push([&awaited = event.stream_->queue_, position = event.position_] {
    awaited.demand(position);
    awaited.await(position);
  });
}

bool Stream::query() { return tail().query(); }

void Stream::synchronize() { tail().synchronize(); }

Event Stream::tail() {
  WorkQueue::check_process();
  const std::lock_guard<std::mutex> lock(mutex_);
  order_after_queries();
  Event event;
  event.stream_ = this;
  event.position_ = queue_.last();
  event.clock_ = race_detector().now(number_);
  return event;
}

void Stream::order_after_queries() { race_detector().order(number_, queried); }

void Stream::run(const std::string& kernel, const std::function<void()>& body) {
  delay_kernel(id_ == 0);
  if (!body || has_failed(device_)) return;
  try {
    body();
  } catch (const std::exception& error) {
    fail_device(device_, "'" + kernel + "' failed: " + error.what());
  }
}

void Event::record(Stream& stream) {
  auto time = std::make_shared<std::chrono::steady_clock::time_point>();
  WorkQueue::check_process();
  const std::lock_guard<std::mutex> lock(stream.mutex_);
  stream.order_after_queries();
  stream_ = &stream;
  position_ = stream.queue_.push([time] { *time = std::chrono::steady_clock::now(); });
  clock_ = race_detector().now(stream.number_);
  time_ = std::move(time);
}

bool Event::query() const {
  if (stream_ == nullptr) return true;
  stream_->queue_.demand(position_);
  if (!stream_->queue_.has_reached(position_)) return false;
  queried.join(clock_);
  check_device(stream_->device_);
  return true;
}

void Event::synchronize() const {
  if (stream_ == nullptr) return;
  ++waits;
  stream_->queue_.demand(position_);
  await();
  race_detector().order_host(clock_);
  check_device(stream_->device_);
}

std::chrono::duration<double, std::milli> Event::since(const Event& earlier) const {
  return *time_ - *earlier.time_;
}

void Event::await() const {
  if (stream_ != nullptr) stream_->queue_.await(position_);
}

uint64_t host_waits() { return waits.load(); }

}  // namespace farandole::sim
