// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>

#include "comm/shm/system/cache_line.h"
#include "comm/shm/system/futex.h"

namespace farandole::comm::shm {

/// Where threads of any process sleep until another one has stored what they look for.
///
/// Protocol.
///   sleep: sleepers += 1; read `rings`; look for what was stored; if it is not there, sleep on
///          `rings` while it has the value that was read; sleepers -= 1.
///   ring:  after the store: if `sleepers` is not zero, rings += 1 and wake all.
///
/// Memory order. The store, the look and all accesses here are seq_cst, so they have one order that
/// all threads agree on, which the following refers to.
///
/// Proof that no sleeper misses a store. If the ringer's read of `sleepers` comes after the
/// sleeper's addition, the ringer increments `rings`. If it does so after the sleeper has read
/// `rings`, the futex does not let the sleeper sleep, or wakes it. If it does so before, the store,
/// which is earlier still, comes before the look, which sees it. If the ringer's read of `sleepers`
/// comes before the addition, so does the store, and the look sees it again. BellModel in
/// tests/comm/protocol_model_test.cpp explores all interleavings.
///
/// Without sleepers a ring is one load of a line that nobody writes.
///
/// Lifetime: zeroed memory that all ranks map is a bell. Threads: any of any process.
class alignas(kNoSharing) Bell {
 public:
  /// Wakes all sleepers. The caller has stored what they look for, with seq_cst.
  void ring() {
    if (sleepers_.load(std::memory_order_seq_cst) == 0) return;
    rings_.fetch_add(1, std::memory_order_seq_cst);
    futex_wake_all(rings_);
  }

  /// Sleeps until somebody rings. `look` looks for what was stored, with seq_cst, and returns how
  /// long to sleep at most: zero if it is there. It must not throw.
  template <class Look>
  void sleep(const Look& look) {
    sleepers_.fetch_add(1, std::memory_order_seq_cst);
    const uint32_t rings = rings_.load(std::memory_order_seq_cst);
    const std::chrono::microseconds limit = look();
    if (limit.count() > 0) futex_wait(rings_, rings, limit);
    sleepers_.fetch_sub(1, std::memory_order_seq_cst);
  }

 private:
  std::atomic<uint32_t> rings_;     ///< futex word
  std::atomic<uint32_t> sleepers_;  ///< threads within sleep()
};

}  // namespace farandole::comm::shm
