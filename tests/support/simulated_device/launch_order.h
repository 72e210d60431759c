// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <mutex>
#include <utility>

#include "support/simulated_device/work_queue.h"

namespace farandole::sim {

/// Kernels that run in the order in which they are launched, on whichever streams, as those of a
/// communicator do. The race detector does not know of this order: programs must not count on it.
///
/// Threads: any.
class LaunchOrder {
 public:
  /// Pushes `kernel`, which first waits for the one before.
  void push(WorkQueue& queue, std::function<void()> kernel) {
    const std::lock_guard<std::mutex> lock(mutex_);
    last_position_ =
        queue.push([before = last_queue_, position = last_position_, kernel = std::move(kernel)] {
          if (before != nullptr) before->reach(position);
          kernel();
        });
    last_queue_ = &queue;
  }

  /// Waits for the last one.
  void await_last() {
    std::unique_lock<std::mutex> lock(mutex_);
    WorkQueue* const queue = last_queue_;
    const uint64_t position = last_position_;
    lock.unlock();
    if (queue != nullptr) queue->reach(position);
  }

 private:
  std::mutex mutex_;
  WorkQueue* last_queue_ = nullptr;  // guarded by mutex_; null: there was none
  uint64_t last_position_ = 0;       // guarded by mutex_
};

}  // namespace farandole::sim
