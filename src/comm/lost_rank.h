// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "farandole/comm/topology.h"
#include "farandole/error.h"
#include "farandole/export.h"

namespace farandole::comm {

/// Names the function of the library that the program has called on this thread, while it lives.
/// Errors about ranks that have not called it show this name, because the program does not know the
/// collectives inside. Of nested ones, the outermost counts.
///
/// Threads: each has its own. Destroyed on the thread that made it, the last one first.
class FARANDOLE_API CalledFunction {
 public:
  /// `name` is as "save_checkpoint()".
  explicit CalledFunction(const std::string& name);
  ~CalledFunction();
  CalledFunction(const CalledFunction&) = delete;
  CalledFunction& operator=(const CalledFunction&) = delete;

 private:
  bool is_outermost_;
};

/// For a rank that may have been killed.
constexpr auto kFixOfDeath =
    "look at that rank's own output and at the kernel log (out of memory?), then restart the job "
    "or continue without that rank.";

/// What a rank that is gone has not called: the function that the program is in, else the
/// collective `operation` ("all_reduce"), else any collective.
FARANDOLE_API std::string missing_call(const std::string& operation);

/// For a rank that has ended without an error, as far as is known.
FARANDOLE_API std::string fix_of_absence(const std::string& operation);

/// `rank` has left `group`, while this thread waits for it to join a new group.
FARANDOLE_API PeerFailure left_while_forming(const std::string& group, const Topology& topology,
                                             int rank);

}  // namespace farandole::comm
