// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <memory>
#include <string>

namespace farandole::checkpoint {

/// A folder that one writer has for itself, by flock() of a file ".writer" in it. It ends with the
/// process, however that ends. Where the file system knows no locks, a folder is not protected.
class FolderLock {
 public:
  /// That of this process, which its writers share. Makes the folder if it is not there. Throws
  /// CheckpointError if another process has it.
  static std::shared_ptr<FolderLock> of(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Whether the file system has given it: then nobody else writes there.
  bool is_held() const { return is_held_; }
  /// Of the saves of this process; 0 if there is none yet. Threads: one at a time.
  int64_t last_number = 0;

 private:
  explicit FolderLock(const std::string& folder);

  const int descriptor_;
  bool is_held_;
};

}  // namespace farandole::checkpoint
