// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

namespace farandole::checkpoint {

/// A folder that one writer has for itself, by flock() of a file ".writer" in it. It ends with the
/// process, however that ends. Where the file system knows no locks, a folder is not protected.
class FolderLock {
 public:
  /// Makes the folder if it is not there. Throws CheckpointError if another writer has it.
  explicit FolderLock(const std::string& folder);
  ~FolderLock();
  FolderLock(const FolderLock&) = delete;
  FolderLock& operator=(const FolderLock&) = delete;

  /// Whether the file system has given it: then nobody else writes there.
  bool is_held() const { return is_held_; }

 private:
  const int descriptor_;
  bool is_held_;
};

}  // namespace farandole::checkpoint
