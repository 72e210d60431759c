// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <deque>
#include <memory>
#include <mutex>
#include <vector>

#include "process_group/device/device_operation.h"

namespace farandole {

/// The operations of one stream that are not known to have ended, in their order there.
///
/// Threads: any.
class PendingOperations {
 public:
  using Entry = std::shared_ptr<DeviceOperation>;

  /// Whether nobody looks after them: then the caller must see that somebody does, until rest()
  /// has returned true.
  bool add(Entry operation);
  /// True, and nobody looks after them any more, if there are none.
  bool rest();

  /// Those that have ended since the last call. Throws what the device has.
  std::vector<Entry> take_ended();
  std::vector<Entry> take_all();
  /// Notes that none of them will end well. They stay, for the device may still use their tensors.
  void fail(const std::exception_ptr& failure);
  /// See DeviceOperation.
  void doom();
  /// The first one; null if there is none.
  Entry first() const;

 private:
  mutable std::mutex mutex_;
  std::deque<Entry> entries_;  // guarded by mutex_
  bool watched_ = false;       // guarded by mutex_
};

}  // namespace farandole
