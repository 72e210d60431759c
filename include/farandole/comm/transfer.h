// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <functional>

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
  /// Calls `wake` once when it is over, at once if it is already. Any thread may do so, and with
  /// locks held: `wake` must not block, throw or use a communicator, only wake somebody who does.
  virtual void when_done(std::function<void()> wake) = 0;
  /// The rank at the other side; for a receive from any source, once it is done.
  virtual int peer() const = 0;
};

}  // namespace farandole::comm
