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

 private:
  const int descriptor_;
};

}  // namespace farandole::checkpoint
