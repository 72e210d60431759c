// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <unistd.h>

#include <cerrno>
#include <cstddef>

namespace farandole::comm {

/// write(2), again and again until a file has all of it. Returns 0, or errno: EBADF where the
/// program has closed the descriptor, whose number may be that of a file of the program now.
template <class Descriptor>
int write_all(const Descriptor& descriptor, const void* data, size_t bytes) {
  if (!descriptor.is_intact()) return EBADF;
  const auto* next = static_cast<const char*>(data);
  while (bytes > 0) {
    const ssize_t written = ::write(descriptor.get(), next, bytes);
    if (written < 0 && errno == EINTR) continue;
    if (written < 0) return errno;
    next += written;
    bytes -= static_cast<size_t>(written);
  }
  return 0;
}

}  // namespace farandole::comm
