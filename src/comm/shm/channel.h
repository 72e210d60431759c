// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "comm/shm/control_block.h"

namespace farandole::comm::shm {

/// A stream of bytes from one rank to another: a ring with one writer and one reader.
///
/// Protocol. `written` and `read` only grow. The writer owns the bytes [written, read + capacity),
/// the reader [read, written). Each side stores its own counter after it has finished with the
/// bytes (release) and reads the other's before it touches any (acquire). The stores are seq_cst
/// for the doorbells of point_to_point.h.
struct Channel {
  alignas(kNoSharing) std::atomic<uint64_t> written;
  alignas(kNoSharing) std::atomic<uint64_t> read;
  alignas(kNoSharing) std::byte data[1];  ///< in fact `capacity` bytes

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
    in_pieces(written, n, capacity, [&](size_t moved, std::byte* place, size_t length) {
      std::memcpy(place, from + moved, length);
    });
    return n;
  }

  /// Reads at most `bytes`, or drops them if `to` is null; returns how many there were.
  size_t take(std::byte* to, size_t bytes, size_t capacity) {
    const size_t n = std::min(bytes, readable());
    in_pieces(read, n, capacity, [&](size_t moved, const std::byte* place, size_t length) {
      if (to != nullptr) std::memcpy(to + moved, place, length);
    });
    return n;
  }

  /// Offers what is readable in one piece to `use`, which returns how many bytes of it it has
  /// taken.
  template <class Use>
  size_t take_piece(size_t capacity, const Use& use) {
    const uint64_t begin = read.load(std::memory_order_relaxed);
    const size_t place = begin % capacity;
    const size_t length = std::min(readable(), capacity - place);
    const size_t used = length == 0 ? 0 : use(data + place, length);
    read.store(begin + used, std::memory_order_seq_cst);
    return used;
  }
  /// Offers what is writable in one piece to `use`, which returns how many bytes it has written.
  template <class Use>
  size_t write_piece(size_t capacity, const Use& use) {
    const uint64_t begin = written.load(std::memory_order_relaxed);
    const size_t place = begin % capacity;
    const size_t length = std::min(writable(capacity), capacity - place);
    const size_t used = length == 0 ? 0 : use(data + place, length);
    written.store(begin + used, std::memory_order_seq_cst);
    return used;
  }

 private:
  /// Pieces are published one by one, so that the other side works at the same time.
  template <class Move>
  void in_pieces(std::atomic<uint64_t>& counter, size_t bytes, size_t capacity, const Move& move) {
    constexpr size_t kPiece = size_t{32} * 1024;
    const uint64_t begin = counter.load(std::memory_order_relaxed);
    for (size_t moved = 0; moved < bytes;) {
      const size_t place = (begin + moved) % capacity;
      const size_t length = std::min({kPiece, bytes - moved, capacity - place});
      move(moved, data + place, length);
      moved += length;
      counter.store(begin + moved, std::memory_order_seq_cst);
    }
  }
};

/// Where a rank sleeps while no bytes move for it: which of its threads to wake, and a futex word
/// for each, which peers increment.
struct alignas(kNoSharing) Doorbell {
  enum Who : uint32_t { kNobody, kWaiters, kHelper };
  std::atomic<uint32_t> wanted;  ///< a Who
  std::array<std::atomic<uint32_t>, 2> rings;

  std::atomic<uint32_t>& rings_of(Who who) { return rings[who - 1]; }
};

}  // namespace farandole::comm::shm
