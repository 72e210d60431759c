// SPDX-License-Identifier: Apache-2.0
#include "support/simulated_device/stream.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <utility>

#include "support/simulated_device/device.h"
#include "support/simulated_device/errors.h"
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

std::string Stream::name() const { return name_of(device_, id_); }

void Stream::launch(const std::string& kernel, const std::vector<Access>& accesses,
                    std::function<void()> body, std::shared_ptr<LaunchOrder> order) {
  launch(Kernel{kernel, on_device(accesses), std::move(body), std::move(order)});
}

void Stream::launch(Kernel kernel) {
  WorkQueue::check_process();
  check_device(device_);
  const std::lock_guard<std::mutex> lock(mutex_);
  capture_ == nullptr ? enqueue(kernel) : record(std::move(kernel));
}

/// mutex_ must be held.
void Stream::enqueue(const Kernel& kernel) {
  order_after_queries();
  race_detector().launch(number_, kernel.name, kernel.accesses);
  auto task = [this, name = kernel.name, body = kernel.body] { run(name, body); };
  if (kernel.order == nullptr) {
    queue_.push(std::move(task));
  } else {
    kernel.order->push(queue_, std::move(task));
  }
}

/// mutex_ must be held.
void Stream::record(Kernel kernel) {
  capture_->check();
  last_nodes_ = {capture_->add({this, std::move(kernel), last_nodes_, /*is_aside=*/false})};
}

void Stream::wait(const Event& event) {
  if (event.stream_ == nullptr) return;
  if (event.stream_ != this && leaves_out_wait(number_, event.stream_->number_)) return;
  WorkQueue::check_process();
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (capture_ != nullptr || event.capture_ != nullptr) return wait_in_capture(event);
  }
  follow(event);
}

/// mutex_ must be held.
void Stream::wait_in_capture(const Event& event) {
  const std::string what = name() + " waits for an event of " + event.stream_->name();
  if (event.capture_ == nullptr) {
    capture_->fail(what, "cudaErrorStreamCaptureIsolation",
                   name() + " is captured, and the event is of no capture");
  }
  event.capture_->check();
  if (capture_ == nullptr) {
    event.capture_->add_stream(*this);
    capture_ = event.capture_;
  } else if (capture_ != event.capture_) {
    event.capture_->invalidate(what);
    capture_->fail(what, "cudaErrorStreamCaptureMerge", "they are of different captures");
  }
  capture_->check();
  for (const size_t each : event.nodes_) {
    const bool is_new =
        std::find(last_nodes_.begin(), last_nodes_.end(), each) == last_nodes_.end();
    if (is_new) last_nodes_.push_back(each);
  }
}

void Stream::follow(const Event& event) {
  if (event.stream_ == this) return;
  const std::lock_guard<std::mutex> lock(mutex_);
  race_detector().order(number_, event.clock_);
  queue_.push(
      [&awaited = event.stream_->queue_, position = event.position_] { awaited.reach(position); });
}

bool Stream::query() {
  check_not_captured("a query");
  return enqueued().query();
}

void Stream::synchronize() {
  check_not_captured("a wait of the host");
  enqueued().synchronize();
}

void Stream::check_not_captured(const char* call) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (capture_ == nullptr) return;
  capture_->fail(std::string(call) + " for " + name() + " is not possible",
                 "cudaErrorStreamCaptureUnsupported", "the stream is captured");
}

Event Stream::tail() {
  Event event;
  event.record(*this);
  return event;
}

Event Stream::enqueued() {
  WorkQueue::check_process();
  const std::lock_guard<std::mutex> lock(mutex_);
  order_after_queries();
  Event event;
  event.stream_ = this;
  event.position_ = queue_.last();
  event.clock_ = race_detector().now(number_);
  return event;
}

void Stream::begin_capture(CaptureMode mode) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (id_ == 0) {
    throw CaptureError(name() +
                       " cannot be captured (cudaErrorStreamCaptureUnsupported).\nwhy: it is a "
                       "default stream.\nfix: capture another stream.");
  }
  if (capture_ != nullptr) {
    capture_->fail(name() + " begins a capture", "cudaErrorIllegalState", "it is captured already");
  }
  capture_ = std::make_shared<Capture>(*this, mode);
}

std::shared_ptr<Graph> Stream::end_capture() {
  std::shared_ptr<Capture> ended;
  Nodes last;
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (capture_ == nullptr) {
      throw CaptureError(name() +
                         " ends a capture (cudaErrorIllegalState).\nwhy: it is not captured.\nfix: "
                         "begin a capture before.");
    }
    ended = capture_;
    last = last_nodes_;
  }
  return ended->end(*this, last);
}

CaptureStatus Stream::capture_status() {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (capture_ == nullptr) return CaptureStatus::kNone;
  return capture_->is_valid() ? CaptureStatus::kActive : CaptureStatus::kInvalid;
}

void Stream::leave(const Capture& capture) {
  std::shared_ptr<Capture> left;  // ends without the mutex
  const std::lock_guard<std::mutex> lock(mutex_);
  if (capture_.get() != &capture) return;
  left.swap(capture_);
  last_nodes_.clear();
}

bool Stream::give_to_graph(void* data, size_t bytes, const std::function<void()>& poison) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (capture_ == nullptr) return false;
  capture_->keep(data);
  if (capture_->is_valid()) record({"allocation", {{data, bytes, true}}, poison, nullptr});
  return true;
}

void Stream::take_back_in_graph(void* data, size_t bytes, const std::function<void()>& poison) {
  const std::lock_guard<std::mutex> lock(mutex_);
  if (capture_ == nullptr || !capture_->is_valid()) return;
  capture_->add({this,
                 {"release", {{data, bytes, true}}, poison, nullptr},
                 last_nodes_,
                 /*is_aside=*/true});
}

/// mutex_ must be held.
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
  if (stream.capture_ != nullptr) stream.capture_->check();
  stream_ = &stream;
  capture_ = stream.capture_;
  nodes_ = stream.last_nodes_;
  if (capture_ != nullptr) return;
  stream.order_after_queries();
  position_ = stream.queue_.push([time] { *time = std::chrono::steady_clock::now(); });
  clock_ = race_detector().now(stream.number_);
  time_ = std::move(time);
}

bool Event::query() const {
  if (stream_ == nullptr) return true;
  check_not_captured("a query");
  stream_->queue_.demand(position_);
  if (!stream_->queue_.has_reached(position_)) return false;
  queried.join(clock_);
  check_device(stream_->device_);
  return true;
}

void Event::synchronize() const {
  if (stream_ == nullptr) return;
  check_not_captured("a wait of the host");
  ++waits;
  stream_->queue_.reach(position_);
  race_detector().order_host(clock_);
  check_device(stream_->device_);
}

std::chrono::duration<double, std::milli> Event::since(const Event& earlier) const {
  check_not_captured("a time");
  earlier.check_not_captured("a time");
  return *time_ - *earlier.time_;
}

void Event::await() const {
  if (stream_ != nullptr) stream_->queue_.await(position_);
}

void Event::check_not_captured(const char* call) const {
  if (capture_ != nullptr) {
    capture_->fail(std::string(call) + " for an event of " + stream_->name() + " is not possible",
                   "cudaErrorCapturedEvent", "it was recorded while the stream was captured");
  }
  check_unsafe_call(call);
}

uint64_t host_waits() { return waits.load(); }

}  // namespace farandole::sim
