// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <sys/socket.h>

#include <cstdint>
#include <string>

#include "comm/private_descriptor.h"

namespace farandole::profiler {

/// What ranks ask rank 0, and what it answers, in one UDP packet. Hosts have one byte order, which
/// their group compares when it forms.
struct ClockMessage {
  uint64_t session = 0;     ///< random, from the store; other packets are dropped
  int64_t asked_ns = 0;     ///< TraceClock of who asks
  int64_t received_ns = 0;  ///< TraceClock of rank 0
  int64_t answered_ns = 0;  ///< likewise
};

/// In the store: "<session> <address of rank 0>".
inline const std::string kClockKey = "farandole/profile/clock";

/// A UDP socket for addresses of a family. Throws SystemError.
comm::PrivateDescriptor clock_socket(int family);

}  // namespace farandole::profiler
