// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>

#include "comm/private_descriptor.h"

namespace farandole::checkpoint {

/// A folder that one writer has for itself, by flock() of a file ".writer" in it. It ends with the
/// process, however that ends. Where the file system knows no locks, a folder is not protected.
class FolderLock {
 public:
  /// That of this process, which its writers share. Makes the folder if it is not there. Throws
  /// CheckpointError if another process has it.
  static std::shared_ptr<FolderLock> of(const std::string& folder);
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Whether its file is still in the folder: one that was removed and made again is another's.
  bool is_in(const std::string& folder) const;
  /// Whether the file system has given it: then nobody else writes there.
  bool is_held() const { return is_held_; }
  /// Of the saves of this process; 0 if there is none yet. Threads: one at a time.
  int64_t last_number = 0;

  /// Lets one thread after the other put its save in place. `put(is_newest)`: whether no save that
  /// began later is in place already. Threads: any.
  template <class Put>
  void put_in_place(int64_t number, const Put& put) {
    const std::lock_guard<std::mutex> guard(mutex_);
    put(number >= newest_);
    newest_ = std::max(newest_, number);
  }

 private:
  explicit FolderLock(const std::string& folder);

  const comm::PrivateDescriptor descriptor_;  // not of a child that outlives this process
  const bool is_held_;
  std::mutex mutex_;
  int64_t newest_ = 0;  ///< guarded by mutex_
};

}  // namespace farandole::checkpoint
