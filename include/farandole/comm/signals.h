// SPDX-License-Identifier: Apache-2.0
#pragma once

#include "farandole/export.h"

namespace farandole::comm {

struct CollectiveOptions;

/// Signals from each rank of a group to each, counted: the other half of one-sided writes into
/// symmetric memory. What a rank wrote before signal() is seen by the peer whose wait() took that
/// signal.
///
/// Errors and timeouts are those of a receive: PeerFailure, TimeoutError and AbortedError end the
/// group. Threads: any; each signal is taken once. It may outlive its communicator, but not be used
/// then.
class FARANDOLE_API Signals {
 public:
  virtual ~Signals();
  /// Counts one signal up at `peer` (this rank too) and wakes it. Never blocks.
  virtual void signal(int peer) = 0;
  /// Takes one signal of `peer`; waits until there is one.
  virtual void wait(int peer, const CollectiveOptions& options) = 0;
};

}  // namespace farandole::comm
