// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <mutex>
#include <string>
#include <torch/csrc/distributed/c10d/Work.hpp>
#include <vector>

#include "process_group/device/device_transfers.h"

namespace farandole {

/// What a group is given between startCoalescing() and endCoalescing(), which ends all of it with
/// one Work.
///
/// Transfers of accelerators wait for the end, so that they become one operation: in the order of
/// their calls, ranks which send to each other would wait for each other. All else runs as ever.
/// Threads: any, but what any thread calls until the end is part of it.
class Coalescing {
 public:
  using Work = c10::intrusive_ptr<c10d::Work>;
  struct Calls {
    std::vector<Work> works;
    std::vector<DeviceTransfer> transfers;
  };

  /// As drop() before, if it has begun: torch's context managers call no end after an error.
  /// `group` is for messages.
  void start(const std::string& group);
  /// Ends it; transfers that wait for the end are not begun, and one line says so.
  void drop(const std::string& group);
  bool is_active() const { return active_.load(std::memory_order_relaxed); }
  void add(Work work);
  void add(DeviceTransfer transfer);
  /// Throws InvalidArgument if it has not begun.
  Calls end(const std::string& group);

 private:
  std::mutex mutex_;
  std::atomic<bool> active_{false};  // written under mutex_
  Calls calls_;                      // guarded by mutex_
};

}  // namespace farandole
