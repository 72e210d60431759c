// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <exception>
#include <string>

#include "farandole/comm/topology.h"
#include "farandole/export.h"

namespace farandole::comm {

/// A message as errors name it.
struct MessageText {
  size_t bytes;
  int peer;  ///< -1: any rank
  uint64_t tag;
  const char* call;  ///< "send" or "recv"
};

/// `came` bytes have come for a receive of `message`. A MismatchError.
FARANDOLE_API std::exception_ptr transfer_size_error(const Topology& topology, size_t came,
                                                     const MessageText& message);
/// A rank waits for a message of itself that it has not sent. An InvalidArgument.
FARANDOLE_API std::exception_ptr receive_from_itself_error(const Topology& topology, uint64_t tag);
/// What a rank says of a transfer that reached its timeout, and the TimeoutError.
FARANDOLE_API std::string late_transfer_text(const Topology& topology, const MessageText& message,
                                             int64_t timeout_ms);
FARANDOLE_API std::exception_ptr late_transfer_error(const Topology& topology,
                                                     const MessageText& message,
                                                     const std::string& text);
/// What a rank says of a transfer whose peer `gone` has ended, and the PeerFailure.
FARANDOLE_API std::string cut_off_transfer_text(const Topology& topology, int gone);
FARANDOLE_API std::exception_ptr cut_off_transfer_error(const Topology& topology, int gone,
                                                        const std::string& text);
/// Of transfers whose group is destroyed. An AbortedError.
FARANDOLE_API std::exception_ptr unfinished_transfer_error();
/// A transfer was used in a forked child process, which is no rank.
[[noreturn]] FARANDOLE_API void throw_forked_transfer();

}  // namespace farandole::comm
