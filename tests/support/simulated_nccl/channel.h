// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

namespace farandole::sim::nccl {

/// A stream of bytes from one rank to another, in memory that both share. Zero bytes are an empty
/// channel.
///
/// Threads: one that puts and one that takes. Memory order: what is taken was put before
/// (`written_`, release and acquire), and room is used again after its bytes were taken (`taken_`).
class Channel {
 public:
  /// Puts what there is room for; returns how many bytes that is.
  size_t put(const char* data, size_t bytes) {
    const uint64_t begin = written_.load(std::memory_order_relaxed);
    const uint64_t used = begin - taken_.load(std::memory_order_acquire);
    bytes = std::min(bytes, kCapacity - static_cast<size_t>(used));
    for (size_t done = 0; done < bytes;) {
      const size_t at = static_cast<size_t>(begin + done) % kCapacity;
      const size_t part = std::min(bytes - done, kCapacity - at);
      std::memcpy(ring_ + at, data + done, part);
      done += part;
    }
    written_.store(begin + bytes, std::memory_order_release);
    return bytes;
  }

  /// Takes what is there; returns how many bytes that is.
  size_t take(char* data, size_t bytes) {
    const uint64_t begin = taken_.load(std::memory_order_relaxed);
    const uint64_t there = written_.load(std::memory_order_acquire) - begin;
    bytes = std::min(bytes, static_cast<size_t>(there));
    for (size_t done = 0; done < bytes;) {
      const size_t at = static_cast<size_t>(begin + done) % kCapacity;
      const size_t part = std::min(bytes - done, kCapacity - at);
      std::memcpy(data + done, ring_ + at, part);
      done += part;
    }
    taken_.store(begin + bytes, std::memory_order_release);
    return bytes;
  }

  /// Whether all that was put has been taken.
  bool empty() const {
    return taken_.load(std::memory_order_acquire) == written_.load(std::memory_order_acquire);
  }

 private:
  static constexpr size_t kCapacity = size_t{1} << 14;

  alignas(64) std::atomic<uint64_t> written_;
  alignas(64) std::atomic<uint64_t> taken_;
  alignas(64) char ring_[kCapacity];
};
static_assert(std::atomic<uint64_t>::is_always_lock_free, "processes share it");

}  // namespace farandole::sim::nccl
