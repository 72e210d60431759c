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

#include "support/simulated_device/capture.h"
#include "support/simulated_device/kernel.h"
#include "support/simulated_device/race_detector.h"
#include "support/simulated_device/vector_clock.h"
#include "support/simulated_device/work_queue.h"

namespace farandole::sim {

class Event;

/// Numbered as cudaStreamCaptureStatus.
enum class CaptureStatus { kNone, kActive, kInvalid };

/// Kernels that run one after the other on a thread of the stream's own; the host goes on
/// meanwhile. It stands for a cudaStream_t and is what c10::Stream::native_handle() gives.
///
/// Once a kernel of a device has failed, the device runs no other, and calls throw DeviceError.
///
/// While it is captured (capture.h) kernels and events are recorded and do not run. All functions
/// throw CaptureError where the capture does not allow them.
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
  /// For texts.
  std::string name() const;

  /// Puts a kernel at the end of the stream. `accesses` is all that it touches; memory of the host
  /// is ignored. What `body` throws fails the device. Throws RaceError; the kernel does not run
  /// then. `order`: see Kernel.
  void launch(const std::string& kernel, const std::vector<Access>& accesses,
              std::function<void()> body, std::shared_ptr<LaunchOrder> order = nullptr);
  /// Kernels launched later run after what the event stands for.
  void wait(const Event& event);
  /// Whether all is done. True orders what the calling thread launches later after it: only that,
  /// so that a watchdog which polls hides no missing wait of others.
  bool query();
  /// Waits until all is done. This orders what any thread launches later after it.
  void synchronize();
  /// What was put on the stream so far.
  Event tail();

  /// Captures what follows, until end_capture(). Not for default streams.
  void begin_capture(CaptureMode mode = CaptureMode::kGlobal);
  /// On the stream of begin_capture(), and by the same thread unless it is relaxed. Also where
  /// there is no graph, because the capture is invalid, streams are not captured any more.
  std::shared_ptr<Graph> end_capture();
  CaptureStatus capture_status();

 private:
  friend class Capture;
  friend class Event;
  friend class Graph;
  friend void* allocate(Stream& owner, size_t bytes);
  friend void release(void* data) noexcept;

  void launch(Kernel kernel);
  void enqueue(const Kernel& kernel);
  void order_after_queries();
  void run(const std::string& kernel, const std::function<void()>& body);
  /// wait() for an event of no capture, on a stream that is not captured, for the device's own
  /// purposes.
  void follow(const Event& event);
  /// tail() of what runs, whatever is captured meanwhile.
  Event enqueued();

  void record(Kernel kernel);
  void wait_in_capture(const Event& event);
  /// The end of `capture`.
  void leave(const Capture& capture);
  void check_not_captured(const char* call);
  /// The graph keeps memory that was allocated on this stream while it is captured; false if it is
  /// not.
  bool give_to_graph(void* data, size_t bytes, const std::function<void()>& poison);
  /// Memory of the graph may be used again by what this stream is given from now on.
  void take_back_in_graph(void* data, size_t bytes, const std::function<void()>& poison);

  const int device_;
  const int64_t id_;
  const size_t number_;
  std::mutex mutex_;                  ///< makes the order in the queue that in the race detector
  std::shared_ptr<Capture> capture_;  // guarded by mutex_; null: it is not captured
  Nodes last_nodes_;                  // guarded by mutex_; what the next node comes after
  WorkQueue queue_;
};

/// A point in a stream. An event that was never recorded counts as done.
///
/// One that was recorded on a captured stream is a point in the graph: only streams may wait for
/// it, until the end of the capture, and other calls throw CaptureError.
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

  void check_not_captured(const char* call) const;

  Stream* stream_ = nullptr;
  std::shared_ptr<Capture> capture_;  ///< in which it was recorded; null: in none
  Nodes nodes_;                       ///< of a capture: what has come before
  uint64_t position_ = 0;             ///< in the stream's queue
  VectorClock clock_;
  std::shared_ptr<std::chrono::steady_clock::time_point> time_;  ///< set when the event is reached
};

/// How often the host has waited for streams and events, in this process. Queries do not count.
uint64_t host_waits();

}  // namespace farandole::sim
