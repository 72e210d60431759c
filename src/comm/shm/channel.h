// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "comm/shm/control_block.h"

namespace farandole::comm::shm {

/// A stream of bytes from one rank to another: a ring with one writer and one reader.
///
/// Protocol. `written` and `read` only grow. The writer owns the bytes [written, read + capacity),
/// the reader [read, written). Each side publishes its own counter after it is done with the bytes
/// (release) and looks at the other's before it touches any (acquire); the stores are seq_cst for
/// the doorbells of point_to_point.h.
struct Channel {
  alignas(kNoSharing) std::atomic<uint64_t> written;
  alignas(kNoSharing) std::atomic<uint64_t> read;
  alignas(kNoSharing) std::byte data[1];  ///< `capacity` bytes really

  static size_t bytes_for(size_t capacity) { return offsetof(Channel, data) + capacity; }

  size_t readable() const {
    return written.load(std::memory_order_seq_cst) - read.load(std::memory_order_relaxed);
  }
  size_t writable(size_t capacity) const {
    return capacity -
           (written.load(std::memory_order_relaxed) - read.load(std::memory_order_seq_cst));
  }

  /// Writes at most `bytes`; returns how many fitted.
  size_t write(const std::byte* from, size_t bytes, size_t capacity) {
    const size_t n = std::min(bytes, writable(capacity));
    if (n == 0) return 0;
    const uint64_t at = written.load(std::memory_order_relaxed);
    const size_t first = std::min(n, capacity - at % capacity);
    std::memcpy(data + at % capacity, from, first);
    std::memcpy(data, from + first, n - first);
    written.store(at + n, std::memory_order_seq_cst);
    return n;
  }

  /// Reads at most `bytes`, or drops them if `to` is null; returns how many there were.
  size_t take(std::byte* to, size_t bytes, size_t capacity) {
    const size_t n = std::min(bytes, readable());
    if (n == 0) return 0;
    const uint64_t at = read.load(std::memory_order_relaxed);
    const size_t first = std::min(n, capacity - at % capacity);
    if (to != nullptr) {
      std::memcpy(to, data + at % capacity, first);
      std::memcpy(to + first, data, n - first);
    }
    read.store(at + n, std::memory_order_seq_cst);
    return n;
  }
};

/// Where a rank sleeps while nothing moves for it.
struct alignas(kNoSharing) Doorbell {
  std::atomic<uint32_t> rings;     ///< futex word; peers count it up
  std::atomic<uint32_t> sleepers;  ///< threads of the rank that sleep
};

}  // namespace farandole::comm::shm
