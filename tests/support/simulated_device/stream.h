// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "support/simulated_device/race_detector.h"
#include "support/simulated_device/vector_clock.h"
#include "support/simulated_device/work_queue.h"

namespace farandole::sim {

class Event;

/// Kernels that run one after the other on a thread of the stream's own; the host goes on
/// meanwhile. It stands for a cudaStream_t and is what c10::Stream::native_handle() gives.
///
/// Once a kernel of a device has failed, the device runs no other, and calls throw DeviceError.
///
/// Threads: any. Calls on one stream take effect in the order in which they get its mutex.
class Stream {
 public:
  /// See device.h, which makes streams and keeps them.
  Stream(int device, int64_t id);

  int device() const { return device_; }
  /// 0 for the device's default stream.
  int64_t id() const { return id_; }
  /// In the race detector.
  size_t number() const { return number_; }

  /// Puts a kernel at the end of the stream. `accesses` is all that it touches; memory of the host
  /// is ignored. What `body` throws fails the device. Throws RaceError; the kernel does not run
  /// then.
  void launch(const std::string& kernel, const std::vector<Access>& accesses,
              std::function<void()> body);
  /// Kernels launched later run after what the event stands for.
  void wait(const Event& event);
  /// Whether all is done. True orders what the calling thread launches later after it: only that,
  /// so that a watchdog which polls hides no missing wait of others.
  bool query();
  /// Waits until all is done. This orders what any thread launches later after it.
  void synchronize();
  /// What was put on the stream so far.
  Event tail();

 private:
  friend class Event;

  /// mutex_ must be held.
  void order_after_queries();
  void run(const std::string& kernel, const std::function<void()>& body);

  const int device_;
  const int64_t id_;
  const size_t number_;
  std::mutex mutex_;  ///< makes the order in the queue that in the race detector
  WorkQueue queue_;
};

/// A point in a stream. An event that was never recorded counts as done.
///
/// Threads: one at a time.
class Event {
 public:
  /// The end of what the stream has been given so far; what waits for the event already is not
  /// affected.
  void record(Stream& stream);
  /// As Stream::query().
  bool query() const;
  /// As Stream::synchronize().
  void synchronize() const;
  /// The time from `earlier` to this event. Both must have been recorded, and be done.
  std::chrono::duration<double, std::milli> since(const Event& earlier) const;

  /// Waits without ordering anything, and without making a lazy stream run.
  void await() const;
  /// What happens before the event.
  const VectorClock& clock() const { return clock_; }

 private:
  friend class Stream;

  Stream* stream_ = nullptr;
  uint64_t position_ = 0;  ///< in the stream's queue
  VectorClock clock_;
  std::shared_ptr<std::chrono::steady_clock::time_point> time_;  ///< set when the event is reached
};

/// How often the host has waited for streams and events, in this process. Queries do not count.
uint64_t host_waits();

}  // namespace farandole::sim
