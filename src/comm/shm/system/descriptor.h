// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <utility>

#include "comm/file_identity.h"

namespace farandole::comm::shm {

/// Owns one file descriptor, never that of a standard stream. If the program has closed it, its
/// number is left to whatever the program has opened since.
class Descriptor {
 public:
  Descriptor() = default;
  explicit Descriptor(int fd) : fd_(above_standard_streams(fd)), file_(FileIdentity::of(fd_)) {}
  Descriptor(Descriptor&& other) noexcept : fd_(std::exchange(other.fd_, -1)), file_(other.file_) {}
  Descriptor& operator=(Descriptor&& other) noexcept {
    std::swap(fd_, other.fd_);
    std::swap(file_, other.file_);
    return *this;
  }
  ~Descriptor() { reset(); }

  int get() const { return fd_; }
  bool valid() const { return fd_ >= 0; }
  const FileIdentity& file() const { return file_; }
  /// Whether the number still stands for the file. A system call alone.
  bool is_intact() const { return FileIdentity::of(fd_) == file_; }
  /// Gives the descriptor away without closing it.
  int release() { return std::exchange(fd_, -1); }
  void reset() {
    if (fd_ >= 0 && is_intact()) ::close(fd_);
    fd_ = -1;
  }

 private:
  int fd_ = -1;
  FileIdentity file_;
};

}  // namespace farandole::comm::shm
