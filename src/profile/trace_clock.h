// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>

#include "farandole/comm/events.h"

namespace farandole::profiler {

/// The time since 1970 as it was at the start, carried on by the steady clock: it never jumps.
class TraceClock {
 public:
  TraceClock() : TraceClock(system_ns()) {}
  /// `epoch_ns`: nanoseconds since 1970, now.
  explicit TraceClock(int64_t epoch_ns) : epoch_ns_(epoch_ns) {}
  /// Nanoseconds since 1970 at the moment that comm::now_ns() called `steady_ns`.
  int64_t at(uint64_t steady_ns) const {
    return epoch_ns_ + static_cast<int64_t>(steady_ns) - static_cast<int64_t>(steady_ns_);
  }
  int64_t now() const { return at(comm::now_ns()); }
  int64_t start_ns() const { return epoch_ns_; }

 private:
  static int64_t system_ns() {
    const auto since = std::chrono::system_clock::now().time_since_epoch();
    return std::chrono::duration_cast<std::chrono::nanoseconds>(since).count();
  }

  uint64_t steady_ns_ = comm::now_ns();
  int64_t epoch_ns_;
};

}  // namespace farandole::profiler
