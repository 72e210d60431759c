// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <mutex>
#include <string>
#include <vector>

#include "checkpoint/slice_file.h"
#include "comm/shm/system/descriptor.h"

namespace farandole::checkpoint {

/// Throws CheckpointError: the file at `path` is damaged because of `why`, a clause.
[[noreturn]] void throw_damaged(const std::string& path, const std::string& why);

/// A file of a checkpoint, of which any bytes are read and compared with their checksums. Threads:
/// any.
class CheckedFile {
 public:
  /// Throws CheckpointError if it is not there, or has another size than its record.
  CheckedFile(const std::string& folder, FileRecord record);
  CheckedFile(const CheckedFile&) = delete;
  CheckedFile& operator=(const CheckedFile&) = delete;

  const std::string& path() const { return path_; }
  uint64_t bytes() const { return record_.bytes; }
  /// Blocks that are wanted whole are read into place. The last one of which a part is wanted is
  /// kept: what is read next often begins in it. Throws CheckpointError.
  void read(uint64_t offset, uint64_t bytes, std::byte* to) const;

  /// Which blocks a rank looks at of what all ranks will read.
  struct Share {
    int rank = 0;
    int world_size = 1;
  };
  /// Compares the bytes with their checksums, each block once, and keeps nothing. Throws
  /// CheckpointError.
  void check(uint64_t offset, uint64_t bytes, Share share) const;

 private:
  void read_block(uint64_t block, std::byte* to) const;
  void read_part(uint64_t block, uint64_t skipped, uint64_t bytes, std::byte* to) const;
  uint64_t bytes_of_block(uint64_t block) const;

  const std::string path_;
  const FileRecord record_;
  const comm::shm::Descriptor descriptor_;
  mutable std::mutex mutex_;
  mutable std::vector<std::byte> kept_;  ///< guarded by mutex_, as kept_block_; may be empty
  mutable uint64_t kept_block_ = 0;
  mutable std::vector<bool> checked_;  ///< by block; guarded by mutex_, as space_
  mutable std::vector<std::byte> space_;
};

}  // namespace farandole::checkpoint
