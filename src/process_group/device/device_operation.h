// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <c10/core/Event.h>
#include <c10/core/Stream.h>

#include <atomic>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "farandole/comm/communicator.h"
#include "process_group/call.h"

namespace farandole {

/// One operation on the stream of a DeviceLane, from its call until it is known to have ended. Its
/// Work and its lane share it.
///
/// Threads: any for all functions but note_inputs(), await_inputs(), end(), note_enqueued() and
/// call_back(), of the threads that call and enqueue it. A staged operation is enqueued after its
/// call: who waits for its end then first waits on the host for note_enqueued(), because an event
/// that is not recorded yet holds up nobody. Streams: see each function. Nothing here makes the
/// host wait.
class DeviceOperation {
 public:
  /// `operation` is a literal, `sequence` 0 for a send or receive. `timed`: run_time() will be
  /// asked for. `captured`: `stream` is being captured into a graph.
  DeviceOperation(const char* operation, uint64_t sequence, std::chrono::milliseconds timeout,
                  const c10::Stream& stream, bool timed, bool captured);

  /// "collective #42 all_reduce", or "send".
  std::string name() const;
  const char* operation() const { return operation_; }
  uint64_t sequence() const { return sequence_; }
  std::chrono::milliseconds timeout() const { return timeout_; }
  /// The lane's.
  const c10::Stream& stream() const { return stream_; }
  /// Captured ones never run by themselves: events of a graph must not be queried.
  bool is_captured() const { return captured_; }

  bool is_timed() const { return timed_; }

  /// What completion hooks are told; of its Work. Before others know it.
  void set_completion_key(uint64_t key) { completion_key_ = key; }
  uint64_t completion_key() const { return completion_key_; }

  /// Marks what `caller` was given so far.
  void note_inputs(const c10::Stream& caller);
  /// Makes the lane's stream wait for that.
  void await_inputs();
  /// Marks the end of the operation on the lane's stream. Throws what the device has.
  void end();
  /// It is enqueued, or never will be: who waits for that goes on. call_back() follows.
  void note_enqueued();
  bool has_callbacks() const;
  /// Calls the callbacks, which may take long, wait for other operations and end the group.
  void call_back();
  /// Keeps the tensors that `body` holds until the operation has ended, or until the stream that it
  /// was called on waits for it: memory of that stream is then used again only after it.
  void keep(Body body);

  /// Calls `callback` once after it is enqueued, at once if it is. It must not throw.
  void when_enqueued(std::function<void()> callback);
  /// What drives it while somebody waits without a timeout for it to be enqueued; throws nothing.
  void set_driver(std::function<void()> driver);
  /// Waits on the host until it is enqueued; false after `timeout` (zero: never).
  bool wait_until_enqueued(std::chrono::milliseconds timeout) const;

  /// Whose end ends it, too.
  void runs_on(std::weak_ptr<const comm::Communicator> communicator);

  /// Makes `stream` wait for the end. Only once it is enqueued.
  void make_wait(const c10::Stream& stream);
  /// Whether its inputs are there, and with it nothing but operations of the lane are before it.
  bool has_inputs() const;
  /// Whether it has ended: well, or fail() says why not. Throws what the device has.
  bool has_ended() const;
  /// Keeps in mind that it has, whatever becomes of the communicator.
  void note_ended() { is_settled_ = true; }
  /// From when its inputs were there, once it has ended. Only if is_timed().
  std::chrono::duration<double, std::milli> run_time() const;

  /// Lets go of the tensors.
  void let_go();
  /// Holds back its end: an abort is about to end it, which looks as if it had ended well. fail()
  /// follows.
  void doom() { doomed_ = true; }
  /// Notes that it will never end well.
  void fail(std::exception_ptr failure);
  std::exception_ptr failure() const;
  /// Throws it, if there is one.
  void check() const;

 private:
  bool is_in_doubt() const;

  const char* const operation_;
  const uint64_t sequence_;
  const std::chrono::milliseconds timeout_;
  const c10::Stream stream_;
  const bool timed_;
  const bool captured_;
  uint64_t completion_key_ = 0;
  std::atomic<bool> doomed_{false};
  std::atomic<bool> is_settled_{false};
  std::weak_ptr<const comm::Communicator> communicator_;
  std::optional<c10::Stream> caller_;  ///< the stream that it was called on
  c10::Event inputs_there_;
  c10::Event ended_;
  std::atomic<bool> is_enqueued_{false};  // written under mutex_
  mutable std::mutex mutex_;
  mutable std::condition_variable enqueued_;
  std::vector<std::function<void()>> callbacks_;  // guarded by mutex_
  std::function<void()> driver_;                  // guarded by mutex_; empty once it is enqueued
  Body kept_;                                     // guarded by mutex_
  bool caller_waits_ = false;                     // guarded by mutex_
  std::exception_ptr failure_;                    // guarded by mutex_
};

}  // namespace farandole
