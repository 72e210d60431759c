// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>

#include "farandole/export.h"

namespace farandole::comm {

/// A send or receive under way. Its buffer belongs to the communicator until it is done.
///
/// Threads: any. Dropping a Transfer does not cancel it.
class FARANDOLE_API Transfer {
 public:
  virtual ~Transfer();
  /// Whether it is over, well or badly. Never blocks.
  virtual bool is_done() = 0;
  /// Returns when the data is there (receive) or the buffer may be reused (send). Throws
  /// PeerFailure, TimeoutError, AbortedError, and MismatchError where the sizes of the two sides
  /// differ. Zero means the communicator's own timeout.
  virtual void wait(std::chrono::milliseconds timeout) = 0;
  /// The rank at the other side; for a receive from any source, once it is done.
  virtual int peer() const = 0;
};

}  // namespace farandole::comm
