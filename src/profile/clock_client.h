// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "comm/private_descriptor.h"
#include "farandole/comm/store.h"
#include "farandole/export.h"
#include "profile/trace_clock.h"
#include "profile/trace_lines.h"

namespace farandole::profiler {

/// Asks rank 0 what its clock says; see clock_messages.h. Threads: one at a time.
class FARANDOLE_API ClockClient {
 public:
  /// `store`: where rank 0 has told its address, or will.
  ClockClient(comm::Store& store, const TraceClock& clock) : store_(store), clock_(clock) {}

  /// The best of some questions: that whose answer came first. The clock of rank 0 was somewhere
  /// between the question and the answer, so half of that time is the error. nullopt: rank 0 does
  /// not answer, or does not record yet. Waits for 20 ms at most for each answer. Does not throw.
  std::optional<ClockOffset> measure();

 private:
  bool connect();
  std::optional<ClockOffset> ask();

  comm::Store& store_;
  const TraceClock& clock_;
  comm::PrivateDescriptor socket_;
  uint64_t session_ = 0;
};

}  // namespace farandole::profiler
