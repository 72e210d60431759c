// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <string>

namespace farandole::sim {

/// Tasks that a thread of its own runs in the order in which they were pushed.
///
/// Positions count tasks. A queue has reached a position when the task there and all before it have
/// run. Under Schedule::kLazy a queue of a stream runs tasks only up to the last position that was
/// demanded.
///
/// The thread starts with the first task, so that a process can fork before, and it is never
/// joined: queues live as long as the process. A forked child has no threads, so every call throws
/// DeviceError there once its parent has pushed a task to any queue.
///
/// Threads: any. Memory order: all that a task and those before it did is visible to a thread that
/// has seen its position reached (mutex_).
class WorkQueue {
 public:
  enum class Kind { kStream, kBackground };

  /// `name` is that of the thread; tools show 15 characters.
  WorkQueue(std::string name, Kind kind) : name_(std::move(name)), kind_(kind) {}
  WorkQueue(const WorkQueue&) = delete;
  WorkQueue& operator=(const WorkQueue&) = delete;

  /// `task` must not throw. Returns its position.
  uint64_t push(std::function<void()> task);
  /// The position of the last task; 0 if there was none.
  uint64_t last() const;

  /// Lets tasks up to `position` run under any schedule.
  void demand(uint64_t position);
  /// Waits until `position` is reached.
  void await(uint64_t position) const;
  bool has_reached(uint64_t position) const;
  /// Lets tasks up to `position` run, and waits for them.
  void reach(uint64_t position) {
    demand(position);
    await(position);
  }

  /// Whether this is a forked child whose parent has started the thread of a queue.
  static bool lost_in_fork();
  /// Throws DeviceError if so.
  static void check_process();

 private:
  void start();
  void run();
  bool may_run() const;

  const std::string name_;
  const Kind kind_;
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  // All below: guarded by mutex_.
  std::deque<std::function<void()>> tasks_;
  uint64_t pushed_ = 0;
  uint64_t reached_ = 0;
  uint64_t demanded_ = 0;
};

}  // namespace farandole::sim
