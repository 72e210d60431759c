// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "comm/shm/control_block.h"

namespace farandole::comm::shm {

/// One collective under way on this rank.
struct Call {
  Signature signature;
  size_t element_bytes;
  std::chrono::milliseconds timeout;
  bool sleep_at_once;
  uint64_t begin_ticks;    ///< see event_ticks()
  uint64_t arrived_ticks;  ///< likewise

  size_t count() const { return static_cast<size_t>(signature.count); }
  size_t bytes() const { return count() * element_bytes; }
};

/// How many pieces of at most `piece` hold `total`.
inline size_t pieces_of(size_t total, size_t piece) { return (total + piece - 1) / piece; }

}  // namespace farandole::comm::shm
