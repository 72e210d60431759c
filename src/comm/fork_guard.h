// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>

#include "farandole/export.h"

namespace farandole::comm {

/// Distinguishes a forked child (such as a DataLoader worker) from the process that made a group.
/// The child has no mapping of the memory through which ranks communicate (MADV_DONTFORK), private
/// copies of symmetric memory (private_in_child.h) and none of the threads. It must not communicate
/// as the rank.
///
/// Threads: any.
class FARANDOLE_API ForkGuard {
 public:
  ForkGuard();
  /// Whether this process is the one that made the guard.
  bool in_creator() const;

 private:
  uint64_t generation_;
};

}  // namespace farandole::comm
