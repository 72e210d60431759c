// SPDX-License-Identifier: Apache-2.0
#include "checkpoint/checked_file.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>
#include <vector>

#include "checkpoint/file_error.h"
#include "checkpoint/format/checksum.h"
#include "checkpoint/regular_file.h"
#include "farandole/error.h"

namespace farandole::checkpoint {

void throw_damaged(const std::string& path, const std::string& why) {
  throw CheckpointError("checkpoint-damaged", "the checkpoint's '" + path + "' is damaged.",
                        why + ".", "load another checkpoint, or restore this one from a copy.");
}

CheckedFile::CheckedFile(const std::string& folder, FileRecord record)
    : path_(folder + "/" + record.name),
      record_(std::move(record)),
      descriptor_(open_regular_file(path_)) {
  struct stat status {};
  if (::fstat(descriptor_.get(), &status) != 0) {
    throw_file_error(path_, "could not be opened", errno);
  }
  if (static_cast<uint64_t>(status.st_size) != record_.bytes) {
    throw_damaged(path_, "it has " + std::to_string(status.st_size) + " bytes and had " +
                             std::to_string(record_.bytes) + " when it was saved");
  }
}

void CheckedFile::read(uint64_t offset, uint64_t bytes, std::byte* to) const {
  const uint64_t end = offset + bytes;
  for (uint64_t at = offset; at < end;) {
    const uint64_t block = at / kChecksumBlock;
    const uint64_t skipped = at % kChecksumBlock;
    const uint64_t run = std::min(bytes_of_block(block) - skipped, end - at);
    if (run == bytes_of_block(block)) {
      read_block(block, to);
    } else {
      read_part(block, skipped, run, to);
    }
    to += run;
    at += run;
  }
}

void CheckedFile::check(uint64_t offset, uint64_t bytes, Share share) const {
  if (bytes == 0) return;
  const std::lock_guard<std::mutex> guard(mutex_);
  checked_.resize(record_.checksums.size());
  space_.resize(kChecksumBlock);  // small enough to stay in the cache
  const uint64_t last = (offset + bytes - 1) / kChecksumBlock;
  for (uint64_t block = offset / kChecksumBlock; block <= last; ++block) {
    const bool is_own =
        block % static_cast<uint64_t>(share.world_size) == static_cast<uint64_t>(share.rank);
    if (!is_own || checked_[block]) continue;
    read_block(block, space_.data());
    checked_[block] = true;
  }
}

uint64_t CheckedFile::bytes_of_block(uint64_t block) const {
  return std::min(kChecksumBlock, record_.bytes - block * kChecksumBlock);
}

void CheckedFile::read_part(uint64_t block, uint64_t skipped, uint64_t bytes, std::byte* to) const {
  const std::lock_guard<std::mutex> guard(mutex_);
  if (kept_.empty() || kept_block_ != block) {
    std::vector<std::byte> own = std::move(kept_);
    kept_.clear();  // what is damaged is not kept
    own.resize(bytes_of_block(block));
    read_block(block, own.data());
    kept_ = std::move(own);
    kept_block_ = block;
  }
  std::memcpy(to, kept_.data() + skipped, bytes);
}

/// Checked while it is in the cache.
void CheckedFile::read_block(uint64_t block, std::byte* to) const {
  const uint64_t offset = block * kChecksumBlock;
  const uint64_t bytes = bytes_of_block(block);
  for (uint64_t done = 0; done < bytes;) {
    const ssize_t got =
        ::pread(descriptor_.get(), to + done, bytes - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) throw_file_error(path_, "could not be read", errno);
    if (got == 0) throw_damaged(path_, "it has become shorter while it was read");
    done += static_cast<uint64_t>(got);
  }
  if (checkpoint::crc32c(to, bytes) != record_.checksums[block]) {
    throw_damaged(path_, "bytes " + std::to_string(offset) + " to " +
                             std::to_string(offset + bytes) +
                             " have another checksum than when they were saved");
  }
}

}  // namespace farandole::checkpoint
